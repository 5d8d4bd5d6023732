"""The objects that are followed, each decoded into what is read of it and made a value."""
