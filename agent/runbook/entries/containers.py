"""Entries of containers: the runtime's connection, hooks, CDI files and verification."""

from __future__ import annotations

from agent.runbook.entry import RecommendedAction, RunbookEntry

_WITHOUT_NRI = (
    "Containers that are created now get none of the devices of their allocations. CPUs and "
    "limits are set after the start."
)
_NRI_ON = (
    'containerd: [plugins."io.containerd.nri.v1.nri"] disable = false; '
    "cri-o: enable_nri = true; then restart it"
)
_CONNECTED_AGAIN = "nothing: the agent connects again; if it goes on, see the runtime's log"
_HOOK_IMPACT = "The container starts without that change."
_POD = "correct the pod as the message says"

CONTAINER_ENTRIES = (
    RunbookEntry(
        "RuntimeDoesNotAsk",
        "the container runtime does not ask the agent",
        "The Node condition DeviceInjectionReady is False: the NRI connection is not synchronized.",
        _WITHOUT_NRI,
        _NRI_ON,
    ),
    RunbookEntry(
        "RuntimeLost",
        "the connection to the container runtime ended",
        "The container runtime was restarted, or it closed the NRI connection.",
        _WITHOUT_NRI,
        _CONNECTED_AGAIN,
    ),
    RunbookEntry(
        "RuntimeRefused",
        "the container runtime refuses the agent",
        "The runtime answered the NRI registration with a refusal.",
        _WITHOUT_NRI,
        "see the message; the runtime's log has its reason",
    ),
    RunbookEntry(
        "RegistrationRefused",
        "the container runtime refuses the registration",
        "The runtime does not accept the agent's name or index.",
        _WITHOUT_NRI,
        "see the message; nri.index and the runtime's settings have to agree",
    ),
    RunbookEntry(
        "AnotherAgent",
        "another agent of this node has the connection",
        "Two agents run, as during a rolling update. The older one has the connection.",
        "The older agent answers the runtime.",
        "nothing during an update; else end the agent that is too many",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "NoLock",
        "the lock of the connection cannot be taken",
        "The file in node.run_dir that lets one agent connect cannot be opened or locked.",
        _WITHOUT_NRI,
        "make node.run_dir writable for the agent",
    ),
    RunbookEntry(
        "NoSocket",
        "the socket is not there",
        "The NRI socket of the runtime is missing, or a socket of the agent could not be made.",
        _WITHOUT_NRI,
        _NRI_ON,
    ),
    RunbookEntry(
        "NoAccess",
        "the agent may not open the NRI socket",
        "The kernel refuses the agent the runtime's socket.",
        _WITHOUT_NRI,
        "mount the socket's folder into the agent's container, and run the agent as root",
    ),
    RunbookEntry(
        "NoConnection",
        "nothing listens on the NRI socket",
        "The socket is there, and a connection is refused.",
        _WITHOUT_NRI,
        "see whether the container runtime runs",
    ),
    RunbookEntry(
        "RuntimeSilent",
        "the container runtime does not register the agent",
        "The runtime accepted the connection and did not answer in time.",
        _WITHOUT_NRI,
        _CONNECTED_AGAIN,
    ),
    RunbookEntry(
        "Starting",
        "the connection to the runtime is being made",
        "The agent has just started.",
        _WITHOUT_NRI,
        "nothing, for some seconds",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "AwaitingPods",
        "the container runtime has not sent its pods yet",
        "The agent is registered, and waits for the first list of pods and containers.",
        _WITHOUT_NRI,
        "nothing, for some seconds; if it goes on, see the runtime's log",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "PodsUnread",
        "the runtime's list of pods was lost",
        "The first list could not be decoded. New containers are adjusted.",
        "Containers that ran before are not known to the agent.",
        "see the agent's log; restart the agent",
    ),
    RunbookEntry(
        "SocketReplaced",
        "the container runtime made a new socket",
        "The runtime was restarted.",
        _WITHOUT_NRI,
        _CONNECTED_AGAIN,
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "ClosedByRuntime",
        "the container runtime closed the connection",
        "The runtime was restarted, or an answer took longer than it waits.",
        _WITHOUT_NRI,
        _CONNECTED_AGAIN,
    ),
    RunbookEntry(
        "ClosedByAgent",
        "the agent closed the connection to the runtime",
        "The agent ends, or starts the connection again.",
        _WITHOUT_NRI,
        _CONNECTED_AGAIN,
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "Stopped",
        "the agent ends",
        "The agent closed the connection to the runtime because it ends.",
        _WITHOUT_NRI,
        "nothing: the next agent connects",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "ShutDown",
        "the container runtime shut the connection down",
        "The runtime asked its plug-ins to end.",
        _WITHOUT_NRI,
        _CONNECTED_AGAIN,
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "BadFrame",
        "the container runtime sent an invalid frame",
        "What arrived is not the protocol of NRI.",
        _WITHOUT_NRI,
        "see whether nri.socket is the runtime's NRI socket",
    ),
    RunbookEntry(
        "NotReading",
        "the container runtime does not read answers",
        "Answers of the agent wait for too long, so it closed the connection.",
        _WITHOUT_NRI,
        _CONNECTED_AGAIN,
    ),
    RunbookEntry(
        "NotAsked",
        "a container was created without the agent",
        "The container was created while the agent was not connected.",
        "It lacks what its hooks would have given it: devices above all.",
        "delete the pod: what a container is created with cannot be changed later",
    ),
    RunbookEntry(
        "BudgetExceeded",
        "the agent answered the runtime too late",
        "A hook took longer than the runtime waits, so the answer changed nothing.",
        "The container started without what its hooks would have given it. One with allocated "
        "devices is refused, and created again by the kubelet.",
        "delete the pod; see the agent's log and the load of the node",
    ),
    RunbookEntry(
        "ConnectionLost",
        "the connection ended while a container was created",
        "The container started without the agent's answer.",
        "The container lacks what its hooks would have given it.",
        "delete the pod: what a container is created with cannot be changed later",
    ),
    RunbookEntry(
        "AnswerCameLate",
        "an answer for a container came too late",
        "The container was created before the agent's answer.",
        "It lacks what its hooks would have given it.",
        "delete the pod; see the agent's log and the load of the node",
    ),
    RunbookEntry(
        "HookFailed",
        "a hook of the agent failed",
        "A hook raised an error that it should not: a bug of the agent.",
        "Its fields are left out; if it is the device hook, the container is refused.",
        "report it with `xpu-agent doctor --bundle FILE`",
    ),
    RunbookEntry(
        "BadAnnotation",
        "an annotation of a pod is not valid",
        "A hook cannot use the value of an annotation.",
        _HOOK_IMPACT,
        _POD,
    ),
    RunbookEntry(
        "AnnotationRefused",
        "an annotation of a pod or of the Node is not used",
        "The value is not valid, or contradicts the CPUs of the node.",
        "The agent works as if the annotation were not there.",
        "correct the annotation as the message says",
    ),
    RunbookEntry(
        "VariableNotSet",
        "a variable of a container keeps the pod's value",
        "Image and pod both set a variable that helps to find libraries, so the agent cannot "
        "change the one that applies.",
        "Programs may not find the driver's libraries.",
        "take the variable out of the pod",
    ),
    RunbookEntry(
        "FolderNotMade",
        "a folder for a container could not be made",
        "A folder that is mounted into the container could not be created on the host.",
        "The container is not started.",
        "see the message: the disk is full or read-only, or something else has the path",
    ),
    RunbookEntry(
        "ResctrlGroupMissing",
        "a container starts outside its resctrl group",
        "The group of the container's class does not exist yet.",
        "Cache and memory bandwidth of the container are not limited until it is moved.",
        "nothing: the agent moves it; see the resctrl section of the page if it goes on",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "ChangeNeedsNewContainer",
        "a change applies to new containers only",
        "The changed value can be given to a container at its creation only.",
        "The running container keeps the old value.",
        "restart the pod if the new value is needed",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "UngrantedDevices",
        "a container asks for devices without an allocation",
        "Image or pod set a variable such as NVIDIA_VISIBLE_DEVICES, and the pod has no "
        "allocation of devices.",
        "With hooks.ungranted: warn the container may get every card.",
        "let the pod request devices, or set hooks.ungranted: void",
    ),
    RunbookEntry(
        "AllocationNotVerified",
        "a running container has other devices than its allocation",
        "The agent looked into the container: a device is missing, or there is one too many.",
        "Programs fail, or use a device of another pod.",
        "delete the pod; see what names the device: the pod's spec, its runtime or a CDI file",
    ),
    RunbookEntry(
        "DeviceMissing",
        "a running container lacks an allocated device",
        "It was created while the agent was away, or something else changed it.",
        "Programs in the container do not find their device.",
        "delete the pod: what a container is created with cannot be changed later",
    ),
    RunbookEntry(
        "DeviceExcess",
        "a running container has a device of somebody else",
        "The container has a device that is not in its allocation.",
        "It can use a device of another pod, or one that nobody accounts to it.",
        "see what names the device: the pod's spec, its runtime or a CDI file; delete the pod",
    ),
    RunbookEntry(
        "DeviceDenied",
        "the device rules of a container were replaced",
        "systemd or another program wrote the container's device rules again, without its device.",
        "Programs in the container get `Operation not permitted`.",
        "nvidia-ctk system create-dev-char-symlinks --create-all, or a udev rule, makes the links "
        "so that systemd keeps the rules; then delete the pod",
    ),
    RunbookEntry(
        "SystemdReloaded",
        "systemd may have removed device rules",
        "systemd was reloaded, cgroup 2 does not show device rules, and systemd keeps those of "
        "linked devices only.",
        "Whether the container can still use its device is not known.",
        "nvidia-ctk system create-dev-char-symlinks --create-all, or a udev rule, makes the "
        "links; delete the pod if it has lost its device",
    ),
    RunbookEntry(
        "CdiSpecStale",
        "a CDI file describes another driver version",
        "A CDI file of a vendor's tool names files of a driver version that is not loaded.",
        "What is described there is not given to containers.",
        "generate the file again with the vendor's tool, or remove it",
    ),
    RunbookEntry(
        "CdiSpecUnreadable",
        "a CDI file cannot be read",
        "A file in a CDI folder is not valid, or the kernel refuses it.",
        "What is described there is not given to containers.",
        "correct or remove the file that the message names",
    ),
    RunbookEntry(
        "CdiFileNotWritten",
        "the agent's CDI files cannot be written",
        "The folder of the agent's CDI files is full, read-only or hangs.",
        "Runtimes find no CDI name for new devices.",
        "make cdi.dir writable for the agent",
    ),
    RunbookEntry(
        "BadCDIName",
        "a device cannot be named in a CDI file",
        "The name that follows from the device is not a valid CDI name.",
        "The device is in no CDI file.",
        "see the message; the other devices are in the file",
    ),
)
