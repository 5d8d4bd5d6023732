"""What stood in files before the agent wrote to them, kept on disk, and putting it back."""
