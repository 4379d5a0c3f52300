"""What the tool knows about NCCL's environment variables and configuration files.

"Guide" is the page "Environment Variables" of the NCCL user guide, as of NCCL 2.32
(docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html); the other sources are files of NCCL's repository.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SYSTEM_FILE = Path("/etc/nccl.conf")

_NAME = re.compile(r"NCCL_[A-Z0-9_]+")
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}")
_C_INTEGER = re.compile(r" *([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_MULTIPLIED = re.compile(r"([0-9]{1,19}) ?([KMGT])(?:i?B)?", re.ASCII | re.IGNORECASE)
_MULTIPLIERS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

# Guide, NCCL_ALGO and NCCL_PROTO; the functions are ncclFuncStr in src/init.cc.
_ALGORITHMS = ("Ring", "Tree", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")
_FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_LISTS = {"NCCL_ALGO": _ALGORITHMS, "NCCL_PROTO": _PROTOCOLS}

# Guide, NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL; both are read by ncclGetLevel in src/graph/paths.cc.
# NCCL_NET_MERGE_LEVEL has words of its own (src/graph/topo.cc) and is free text here.
_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
_LEGACY_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")
_LEVEL_VARIABLES = ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL")

# A size or count lands in a C int (computeBuffSizes in src/init.cc), so more is cut off without a word.
_COUNT = range(2**31)
_POSITIVE = range(1, 2**31)

# Guide: the variables that are 0 or 1.
_FLAGS = (
    "NCCL_ALLOC_P2P_NET_LL_BUFFERS",
    "NCCL_CHECKS_DISABLE",
    "NCCL_CHECK_POINTERS",
    "NCCL_COLLNET_ENABLE",
    "NCCL_COMM_BLOCKING",
    "NCCL_CUMEM_ENABLE",
    "NCCL_CUMEM_HOST_ENABLE",
    "NCCL_DMABUF_ENABLE",
    "NCCL_GRAPH_MIXING_SUPPORT",
    "NCCL_GRAPH_REGISTER",
    "NCCL_GRAPH_STREAM_ORDERING",
    "NCCL_IB_ADAPTIVE_ROUTING",
    "NCCL_IB_DISABLE",
    "NCCL_IB_ECE_ENABLE",
    "NCCL_IB_MERGE_NICS",
    "NCCL_IB_RETURN_ASYNC_EVENTS",
    "NCCL_IB_SPLIT_DATA_ON_QPS",
    "NCCL_IGNORE_CPU_AFFINITY",
    "NCCL_IPC_USE_ABSTRACT_SOCKET",
    "NCCL_LAUNCH_ORDER_IMPLICIT",
    "NCCL_LAUNCH_RACE_FATAL",
    "NCCL_LEGACY_CUDA_REGISTER",
    "NCCL_LOCAL_REGISTER",
    "NCCL_MEM_SYNC_DOMAIN",
    "NCCL_MULTI_RANK_GPU_ENABLE",
    "NCCL_NET_GDR_C2C",
    "NCCL_NET_GDR_READ",
    "NCCL_NET_SHARED_BUFFERS",
    "NCCL_NET_SHARED_COMMS",
    "NCCL_NVB_DISABLE",
    "NCCL_OOB_NET_ENABLE",
    "NCCL_P2P_DIRECT_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PXN_C2C",
    "NCCL_PXN_DISABLE",
    "NCCL_RAS_ENABLE",
    "NCCL_RUNTIME_CONNECT",
    "NCCL_SET_STACK_SIZE",
    "NCCL_SET_THREAD_NAME",
    "NCCL_SHM_DISABLE",
    "NCCL_WIN_ENABLE",
)

# Guide, but for NCCL_LL_BUFFSIZE and NCCL_LL128_BUFFSIZE (src/init.cc), NCCL_MIN_P2P_NCHANNELS and
# NCCL_MAX_P2P_NCHANNELS (src/graph/paths.cc).
_INTEGERS: dict[str, Sequence[int]] = {
    **dict.fromkeys(_FLAGS, range(2)),
    "NCCL_BUFFSIZE": _POSITIVE,
    "NCCL_CGA_CLUSTER_SIZE": range(9),
    "NCCL_COLLNET_NODE_THRESHOLD": _COUNT,
    "NCCL_CROSS_NIC": range(3),
    "NCCL_IB_AR_THRESHOLD": _COUNT,
    "NCCL_IB_GID_INDEX": range(-1, 2**31),
    "NCCL_IB_PCI_RELAXED_ORDERING": range(3),
    "NCCL_IB_QPS_PER_CONNECTION": range(1, 129),
    "NCCL_IB_RETRY_CNT": range(8),
    "NCCL_IB_ROCE_VERSION_NUM": _COUNT,
    "NCCL_IB_SL": _COUNT,
    "NCCL_IB_TC": _COUNT,
    "NCCL_IB_TIMEOUT": range(32),
    "NCCL_LL128_BUFFSIZE": _POSITIVE,
    "NCCL_LL_BUFFSIZE": _POSITIVE,
    "NCCL_MAX_CTAS": range(1, 65),
    "NCCL_MAX_NCHANNELS": _POSITIVE,
    "NCCL_MAX_NRINGS": _POSITIVE,
    "NCCL_MAX_P2P_NCHANNELS": _POSITIVE,
    "NCCL_MIN_CTAS": range(1, 65),
    "NCCL_MIN_NCHANNELS": _POSITIVE,
    "NCCL_MIN_NRINGS": _POSITIVE,
    "NCCL_MIN_P2P_NCHANNELS": _POSITIVE,
    "NCCL_MNNVL_ENABLE": range(3),
    "NCCL_NSOCKS_PERTHREAD": range(1, 65),
    "NCCL_NTHREADS": (64, 128, 256, 512),
    "NCCL_NVLS_ENABLE": range(3),
    "NCCL_P2P_LL_THRESHOLD": _COUNT,
    "NCCL_P2P_NET_CHUNKSIZE": _POSITIVE,
    "NCCL_P2P_PXN_LEVEL": range(3),
    "NCCL_SOCKET_NTHREADS": range(1, 17),
    "NCCL_SOCKET_POLL_TIMEOUT_MSEC": _COUNT,
    "NCCL_SOCKET_RETRY_CNT": _POSITIVE,
    "NCCL_SOCKET_RETRY_SLEEP_MSEC": _POSITIVE,
    "NCCL_UID_STAGGER_RATE": _POSITIVE,
    "NCCL_UID_STAGGER_THRESHOLD": _POSITIVE,
}


@dataclass(frozen=True)
class ConfSetting:
    """One `NAME=VALUE` line of an NCCL configuration file, byte for byte as NCCL takes it; `line` counts from 1."""

    name: str
    value: str
    path: Path
    line: int


def check_variable(name: str, value: str) -> str | None:
    """One sentence on why NCCL would refuse, ignore or misread this setting and what to write instead, or None.

    A variable without a grammar here is free text. The grammars follow NCCL 2.24 and later; see the tables above.
    """
    if refusal := check_name(name):
        return refusal
    if not value:
        return f"{name} has an empty value; leave the variable out instead."
    if not value.isprintable():
        return f"{name}={value!r} has a control or other unprintable character; write it in printable characters."
    if name in _LISTS:
        return _check_list(name, value, _LISTS[name])
    if name in _LEVEL_VARIABLES:
        return _check_level(name, value)
    if name in _INTEGERS:
        return _check_integer(name, value, _INTEGERS[name])
    return None


def check_name(name: str) -> str | None:
    """One sentence on why this cannot be a variable of NCCL's, or None."""
    return None if _NAME.fullmatch(name) else _refuse_name(name)


def near_miss(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `word` most looks like, whatever its case."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def conf_settings(environ: Mapping[str, str], *, system_file: Path = SYSTEM_FILE) -> list[ConfSetting]:
    """The settings of NCCL's configuration files, the strongest first: of two for one name the earlier one holds.

    NCCL reads the user's file, then the system's, line by line, and each sets only what nothing set before: neither the
    environment nor an earlier line (initEnvFunc and setEnvFile in src/misc/param.cc, ncclOsSetEnv in src/os/linux.cc).
    The user's file is NCCL_CONF_FILE (from 2.23, no `~`) or, if that is unset or empty, ~/.nccl.conf; NCCL takes that
    home from the password database, this function from HOME. A file that is missing or unreadable gives nothing.
    """
    paths = (_user_file(environ), system_file)
    return [setting for path in paths if path is not None for setting in _read_conf(path)]


def overridden_by_defaults(
    defaults: Mapping[str, str], environ: Mapping[str, str], *, system_file: Path = SYSTEM_FILE
) -> list[ConfSetting]:
    """The settings of the configuration files that hold today, and that `defaults` put into `environ` would override.

    A variable in `environ`, even an empty one, beats the files already and gets no default (ncclOsSetEnv).
    """
    holding: dict[str, ConfSetting] = {}
    for setting in conf_settings(environ, system_file=system_file):
        holding.setdefault(setting.name, setting)
    put = {name: value for name, value in defaults.items() if name not in environ}
    return [setting for name, setting in holding.items() if name in put and setting.value != put[name]]


def _refuse_name(name: str) -> str:
    """Says that this is no name of an NCCL variable, and which one it may stand for."""
    shouted = name.strip().upper()
    near = shouted if _NAME.fullmatch(shouted) else near_miss(name, (*_LISTS, *_LEVEL_VARIABLES, *_INTEGERS))
    advice = f"write {near}" if near else "only NCCL's own variables can be set here"
    return f"{name!r} is not an NCCL variable: those are NCCL_ and then capitals, digits and underscores; {advice}."


def _check_list(name: str, value: str, known: Sequence[str]) -> str | None:
    """Checks `[FUNCTION:]LIST[;FUNCTION:LIST]...`; a LIST is `a,b` or `^a,b` (parseList in src/graph/tuning.cc).

    Like the strtok there, this skips an empty piece between two separators.
    """
    entries = [(position, entry) for position, entry in enumerate(value.split(";")) if entry]
    problems = (_check_entry(name, entry, known, first=position == 0) for position, entry in entries)
    nothing = None if entries else f"{name}={value!r} names nothing; write one of {_words(known)}."
    return next((problem for problem in problems if problem), nothing)


def _check_entry(name: str, entry: str, known: Sequence[str], *, first: bool) -> str | None:
    """Checks one `[FUNCTION:]LIST` of a list value; only the first entry may lack its function."""
    *functions, elements = [part for part in entry.split(":") if part] or [""]
    if len(functions) > 1:
        return f"NCCL reads only two parts of {entry!r} in {name}; write FUNCTION:LIST, with ';' between two of these."
    if not functions and not first:
        return f"NCCL refuses {entry!r} in {name}: only the first entry may lack a function; write allreduce:{entry}."
    words = [word for word in elements.removeprefix("^").split(",") if word]
    if not words:
        return f"{entry!r} in {name} names nothing; write one of {_words(known)}."
    choices = [*((function, _FUNCTIONS) for function in functions), *((word, known) for word in words)]
    for word, choice in choices:
        if word.lower() not in [candidate.lower() for candidate in choice]:
            advice = near_miss(word, choice) or f"one of {_words(choice)}"
            return f"NCCL refuses {word!r} in {name} from 2.24 and ignores it before; write {advice}."
    return None


def _check_level(name: str, value: str) -> str | None:
    """Checks a path type in capitals or a legacy number, as ncclGetLevel in src/graph/paths.cc compares them."""
    if value in _LEVELS or value in ("0", "1", "2", "3", "4"):
        return None
    if value[0] in "0123456789":
        level = _LEGACY_LEVELS[min(_c_integer(value), len(_LEGACY_LEVELS) - 1)]
        return f"NCCL would read {name}={value!r} as the legacy number of {level}; write {level}."
    advice = near_miss(value, _LEVELS) or f"one of {_words(_LEVELS)}"
    return f"{name}={value!r} is no documented level, and NCCL silently ignores what it does not know; write {advice}."


def _check_integer(name: str, value: str, allowed: Sequence[int]) -> str | None:
    """Checks plain decimal digits, the one form that all of NCCL's parsers read alike.

    strtoll with base 0 takes `16M` as 16 and `010` as 8 (ncclLoadParam in src/misc/param.cc); the typed parameters of
    newer versions take `010` as 10 and drop `16M` for the default (src/include/param/parser_default.h).
    """
    plain = bool(_DECIMAL.fullmatch(value))
    if plain and int(value) in allowed:
        return None
    wanted = f"one of {_words(allowed)}" if len(allowed) <= 4 else f"a whole number from {allowed[0]} to {allowed[-1]}"
    if plain:
        return f"NCCL does not take {value} for {name}; write {wanted}."
    multiplied = _MULTIPLIED.fullmatch(value)
    intended = int(multiplied[1]) * _MULTIPLIERS[multiplied[2].upper()] if multiplied else 0
    advice = str(intended) if multiplied and intended in allowed else f"{wanted}, in plain decimal digits"
    return f"NCCL would read {name}={value!r} as {_c_integer(value)} or ignore it; write {advice}."


def _c_integer(text: str) -> int:
    """What C's strtoll makes of the start of a printable text with base 0, kept within 64 bits."""
    match = _C_INTEGER.match(text)
    if match is None:
        return 0
    sign, digits = match.groups()
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    number = min(int(digits[:40], base), 2**63 - 1)
    return -number if sign == "-" else number


def _words(values: Iterable[object]) -> str:
    """The values in a row, as in `64, 128, 256, 512`."""
    return ", ".join(map(str, values))


def _user_file(environ: Mapping[str, str]) -> Path | None:
    """The user's configuration file, which need not exist (initEnvFunc in src/misc/param.cc)."""
    if named := environ.get("NCCL_CONF_FILE"):
        return Path(named)
    home = environ.get("HOME")
    return Path(home, ".nccl.conf") if home else None


def _read_conf(path: Path) -> list[ConfSetting]:
    """The settings of one file, in its order, parsed as setEnvFile in src/misc/param.cc does.

    Only a `#` in the first column makes a comment, and blanks, quotes and a CR belong to the name or the value.
    """
    try:
        text = os.fsdecode(path.read_bytes()) if path.is_file() else ""
    except (OSError, ValueError):
        return []
    numbered = enumerate((line.partition("=") for line in text.split("\n")), start=1)
    settings = [ConfSetting(name, value, path, number) for number, (name, equals, value) in numbered if name and equals]
    return [setting for setting in settings if not setting.name.startswith("#")]
