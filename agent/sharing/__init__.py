"""Cards shared without hardware slices: HAMi-core's regions and MPS daemons. Only read."""
