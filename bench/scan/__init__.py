"""What the scan of PCI functions is measured on and against."""
