"""Devices that do not exist, from a YAML file: for demonstrations, scale tests and fault tests.

    devices:
      - kind: gpu                      # gpu, npu, mlu, xpu, rdma
        bus_id: "0000:3b:00.0"         # may be left out
        uuid: FAKE-0
        minor: 0
        model: Fake 80GB
        memory_bytes: 85899345920
        resources: {koordinator.sh/gpu-core: "100"}
        health: {state: failed, reason: FakeFault, message: broken on purpose}
        core_percent: {mean: 50, swing: 40, period_s: 60}
        memory_used_bytes: {from: 0, to: 85899345920, over_s: 600}
        temperature_celsius: 55
        processes: [{pid: 4711, memory_bytes: 1073741824, core_percent: 12}]
    links: [{a: "0000:3b:00.0", b: "0000:5e:00.0", type: NVLink, count: 4}]
    events: [{at_s: 30, key: "0000:3b:00.0", reason: FakeFault, state: failed}]
    misbehave: [{in: sample, do: hang, after: 10}]

Every field of `VendorDevice` may be given; `labels`, `facts` and `resources` are mappings. The
file is read again at every discovery, so that an edit shows. What goes wrong on purpose is listed
in `plugins.vendors.fake.misbehaviour`.
"""
