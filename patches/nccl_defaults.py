"""NCCL defaults for every process that SGLang spawns, each set only where nobody set it.

`_set_envs_and_config` runs in the parent before any worker is spawned, so what it puts into the environment arrives in
every scheduler. The inserted block keeps out of the way of what it would break; the reasons are beside each rule.
"""

from collections.abc import Collection, Mapping, Sequence

from patcher.nccl import check_name, check_variable, conf_settings, overridden_by_defaults
from patcher.patch import Edit, Example, Outcome, Params, Patch, Profile, State
from patcher.probe import EnvironmentProbe, Probe
from patcher.source import Source

FUNCTION = "_set_envs_and_config"
OFF_SWITCH = "SGLANG_PATCH_NCCL_DEFAULTS"

# NCCL chooses algorithm and protocol together: with one of them forced by somebody, the other alone can leave a
# collective without any (vllm pull 58179). A graph file or a tuner plugin chooses both itself.
TOGETHER = ("NCCL_ALGO", "NCCL_PROTO")
CHOSEN_ELSEWHERE = ("NCCL_GRAPH_FILE", "NCCL_TUNER_PLUGIN")
# NVLink SHARP and symmetric memory need algorithms that a forced ring excludes.
FLAGS = ("enable_nccl_nvls", "enable_symm_mem")
# A default is left out where one of these is set: a minimum is applied after the maximum and the CTA names win over the
# channel names (NCCL's user guide, NCCL_MAX_NCHANNELS); P2P_DISABLE makes a level meaningless.
UNLESS = {
    "NCCL_MAX_NCHANNELS": (
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_CTAS",
        "NCCL_MIN_CTAS",
        "NCCL_MAX_NRINGS",
        "NCCL_MIN_NRINGS",
    ),
    "NCCL_P2P_LEVEL": ("NCCL_P2P_DISABLE",),
}

LATENCY = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}


def insert_block(source: Source, params: Params) -> Outcome:
    """Insert the block after the function's own NCCL and CUDA settings, before the start method is set."""
    from patcher.transforms.environment import Defaults, insert_defaults

    defaults = Defaults(
        function=FUNCTION,
        prefixes=("NCCL_", "TORCH_NCCL_", "CUDA_"),
        before_call="set_start_method",
        flags=FLAGS,
        values=params.items(),
        block=lambda environ, settings: block(environ, settings, params),
    )
    return insert_defaults(source, defaults)


def block(environ: str, settings: str | None, params: Params) -> str:
    """The source of the block. Every value is a string literal, whatever it holds."""
    lines = []
    together = [name for name in TOGETHER if name in params]
    if together:
        lines += ["# One unit, left to whoever chose either, or chose by other means."]
        lines += _if(_untouched(environ, (*TOGETHER, *CHOSEN_ELSEWHERE)) + _flags(settings))
        lines += [f"    {environ}[{_literal(name)}] = {_literal(params[name])}" for name in together]
    for name in params:
        if name in TOGETHER:
            continue
        default = f"{environ}.setdefault({_literal(name)}, {_literal(params[name])})"
        guards = _untouched(environ, UNLESS.get(name, ()))
        lines += [*_if(guards), f"    {default}"] if guards else [default]
    off = f'if {environ}.get("{OFF_SWITCH}") != "0":'
    head = [
        "# sglang-patch: nccl-defaults",
        "# NCCL defaults for the processes spawned below, each only where it is unset.",
        f"# {OFF_SWITCH}=0 turns them off.",
    ]
    return "\n".join([*head, off, *(f"    {line}" for line in lines or ["pass"])]) + "\n"


def _if(conditions: Sequence[str]) -> list[str]:
    if len(conditions) == 1:
        return [f"if {conditions[0]}:"]
    return ["if not (", *(f"    {'or ' if n else ''}{text}" for n, text in enumerate(conditions)), "):"]


def _untouched(environ: str, names: Sequence[str]) -> list[str]:
    if len(names) == 1:
        return [f"{_literal(names[0])} not in {environ}"]
    return [f"{_literal(name)} in {environ}" for name in names]


def _flags(settings: str | None) -> list[str]:
    return [f'getattr({settings}, "{flag}", False)' for flag in FLAGS if settings]


def _literal(text: str) -> str:
    """A Python string literal in double quotes and plain ASCII."""
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


def check_parameter(name: str, value: str) -> str | None:
    """Why NCCL would refuse, ignore or misread a variable; an empty value leaves the variable out."""
    return check_variable(name, value) if value else check_name(name)


def probes(params: Params) -> list[Probe]:
    """The clean start, and one case for each thing that the block must keep out of the way of."""

    def case(name: str, env: Params, *, off: Collection[str] = (), **attributes: object) -> EnvironmentProbe:
        """With `env` exported, each default is there but those of `off`, and what was exported stays."""
        defaults = {key: None if key in off else value for key, value in params.items()}
        return EnvironmentProbe(name, FUNCTION, {**defaults, **env}, env, attributes, spawned=name == "clean")

    found: list[Probe] = [case("clean", {}), case("off switch", {OFF_SWITCH: "0"}, off=params)]
    for name in params:
        also = TOGETHER if name in TOGETHER else ()
        found.append(case(f"{name} exported", {name: "exported"}, off=also))
        found.append(case(f"{name} exported empty", {name: ""}, off=also))
    found += [case(f"{name} exported", {name: "/a/file"}, off=TOGETHER) for name in CHOSEN_ELSEWHERE]
    found += [case(f"--{flag.replace('_', '-')}", {}, off=TOGETHER, **{flag: True}) for flag in FLAGS]
    for name, guards in UNLESS.items():
        if name in params:
            found += [case(f"{guard} exported", {guard: "1"}, off=[name]) for guard in guards]
    deterministic = {"NCCL_ALGO": "allreduce:tree", "NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}
    return [*found, case("deterministic inference", deterministic, off=TOGETHER)]


def notices(params: Params, environ: Mapping[str, str]) -> list[str]:
    """What NCCL's configuration files say: they lose to the environment, and the block does not see them."""
    overridden = [
        f"{setting.path}:{setting.line} sets {setting.name}={setting.value}, which the default {params[setting.name]}"
        f" would override in SGLang; leave it out with --set {setting.name}="
        for setting in overridden_by_defaults(params, environ)
    ]
    guards = {guard: name for name, guarded in UNLESS.items() for guard in guarded if name in params}
    guards |= dict.fromkeys(CHOSEN_ELSEWHERE, "NCCL_ALGO and NCCL_PROTO")
    unseen = [
        f"{setting.path}:{setting.line} sets {setting.name}, beside which {guards[setting.name]} wants no default;"
        " but the block sees the environment only: export it there too"
        for setting in conf_settings(environ)
        if setting.name in guards and setting.name not in environ
    ]
    return overridden + unseen


BEFORE = """\
import multiprocessing as mp
import os


def _set_envs_and_config(server_args):
    os.environ["NCCL_CUMEM_ENABLE"] = "0"
    os.environ["CUDA_MODULE_LOADING"] = "AUTO"

    mp.set_start_method("spawn", force=True)
"""

AFTER = """\
import multiprocessing as mp
import os


def _set_envs_and_config(server_args):
    os.environ["NCCL_CUMEM_ENABLE"] = "0"
    os.environ["CUDA_MODULE_LOADING"] = "AUTO"

    # sglang-patch: nccl-defaults
    # NCCL defaults for the processes spawned below, each only where it is unset.
    # SGLANG_PATCH_NCCL_DEFAULTS=0 turns them off.
    if os.environ.get("SGLANG_PATCH_NCCL_DEFAULTS") != "0":
        # One unit, left to whoever chose either, or chose by other means.
        if not (
            "NCCL_ALGO" in os.environ
            or "NCCL_PROTO" in os.environ
            or "NCCL_GRAPH_FILE" in os.environ
            or "NCCL_TUNER_PLUGIN" in os.environ
            or getattr(server_args, "enable_nccl_nvls", False)
            or getattr(server_args, "enable_symm_mem", False)
        ):
            os.environ["NCCL_ALGO"] = "Ring"
            os.environ["NCCL_PROTO"] = "LL"
        os.environ.setdefault("NCCL_BUFFSIZE", "16777216")
        if not (
            "NCCL_MIN_NCHANNELS" in os.environ
            or "NCCL_MAX_CTAS" in os.environ
            or "NCCL_MIN_CTAS" in os.environ
            or "NCCL_MAX_NRINGS" in os.environ
            or "NCCL_MIN_NRINGS" in os.environ
        ):
            os.environ.setdefault("NCCL_MAX_NCHANNELS", "16")
        os.environ.setdefault("NCCL_NTHREADS", "512")
        if "NCCL_P2P_DISABLE" not in os.environ:
            os.environ.setdefault("NCCL_P2P_LEVEL", "SYS")

    mp.set_start_method("spawn", force=True)
"""

PROTO_BY_HAND = BEFORE.replace(
    '    os.environ["CUDA_MODULE', '    os.environ["NCCL_PROTO"] = "LL"\n    os.environ["CUDA_MODULE'
)

ALL_UPSTREAM = BEFORE.replace(
    "    mp.set_start_method",
    "".join(f'    os.environ.setdefault("{name}", "{value}")\n' for name, value in LATENCY.items())
    + "    mp.set_start_method",
)

PATCH = Patch(
    id="nccl-defaults",
    revision=1,
    summary="NCCL defaults, set before SGLang spawns its schedulers",
    why=(
        "On eight PCIe cards without NVLink, NCCL's own choice of algorithm and protocol makes small all-reduces slow:"
        " speculative decoding's target verify took 29.97 ms a cycle, and 19.14 ms with these variables. Set in the"
        " function that SGLang calls before it spawns, they arrive in the schedulers; what somebody exported stays."
    ),
    upstream="none",
    retire="when the unit file or image of every host exports the variables, or SGLang sets such defaults itself",
    releases=">=0.3.0",
    limits=(
        "Not reached: the gRPC launcher of 0.5.3 to 0.5.9, Ray actors, the encoder-only server (status -v names them).",
        "Dead where a framework assigns its own engine._set_envs_and_config at run time.",
        "NCCL's configuration files lose to these defaults; apply says so where it finds one.",
    ),
    profiles={
        "pcie-latency": Profile("PCIe cards without NVLink, few requests at a time: the lowest latency", LATENCY),
        "pcie-throughput": Profile(
            "PCIe cards without NVLink, many requests at a time (from about 32)",
            {**LATENCY, "NCCL_PROTO": "LL,LL128,Simple"},
        ),
    },
    default_profile="pcie-latency",
    check_parameter=check_parameter,
    notices=notices,
    probes=probes,
    function=FUNCTION,
    edits=(
        Edit(
            paths=("srt/entrypoints/engine.py", "srt/server.py"),
            rewrite=insert_block,
            anchor=f"def {FUNCTION}(",
        ),
    ),
    examples=(
        Example("after the last setting, before the start method", BEFORE, AFTER, LATENCY),
        Example("one of the variables set by hand", PROTO_BY_HAND, State.PARTIAL, LATENCY),
        Example("an SGLang that sets all of them", ALL_UPSTREAM, State.UPSTREAM, LATENCY),
        Example("no such function", "import os\n", State.ABSENT, LATENCY),
        Example("the function twice", BEFORE + BEFORE, State.CONFLICT, LATENCY),
        Example(
            "no setting to go behind", BEFORE.replace("NCCL_CUMEM", "X").replace("CUDA_", "X_"), State.CONFLICT, LATENCY
        ),
    ),
)
