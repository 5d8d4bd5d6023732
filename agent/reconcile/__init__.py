"""Makes files of pods and containers say what their hooks want, and takes it back."""
