"""Devices that another program of the node describes in device-info files.

    discovery:
      vendors: {infofiles: on}
      infofiles: {directory: /var/run/koordlet/xpu-device-infos}

Each regular file of the folder is a JSON array as koord-device-daemon writes it; an entry:

    {"vendor": "metax", "model": "C500", "uuid": "GPU-7", "minor": "7",
     "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "64Gi"},
     "topology": {"p2pLinks": [{"peerMinor": "4,5,6", "type": "MetaXLink"}],
                  "mustHonorPartition": false, "nodeID": "1", "pcieID": "pci0000:a0",
                  "busID": "0000:a1:00.0"},
     "status": {"healthy": true}}

The files are checked every second. If a file cannot be decoded, its last content stays. An entry
that cannot be used is left out and reported. sysfs takes precedence for a device's place.
"""
