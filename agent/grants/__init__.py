"""Whether what pods were granted may be given to them: decoded, checked, settled. Pure."""
