"""Whether a GPU and a NIC can exchange data without the host's memory."""
