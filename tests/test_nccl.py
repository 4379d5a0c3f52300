from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from patcher.nccl import ConfSetting, check_variable, conf_settings, near_miss, overridden_by_defaults

GRAMMARS = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL", "NCCL_BUFFSIZE", "NCCL_NTHREADS")

ACCEPTED = [
    # What the nccl-defaults profile sets.
    ("NCCL_PROTO", "LL"),
    ("NCCL_ALGO", "Ring"),
    ("NCCL_P2P_LEVEL", "SYS"),
    ("NCCL_MAX_NCHANNELS", "16"),
    ("NCCL_BUFFSIZE", "16777216"),
    ("NCCL_NTHREADS", "512"),
    # Levels: capitals, or the legacy numbers.
    ("NCCL_P2P_LEVEL", "NVL"),
    ("NCCL_P2P_LEVEL", "0"),
    ("NCCL_P2P_LEVEL", "4"),
    ("NCCL_NET_GDR_LEVEL", "PHB"),
    ("NCCL_P2P_PXN_LEVEL", "2"),
    # Lists: any case, exclusion, and from 2.24 per function.
    ("NCCL_ALGO", "ring,TREE,CollNetDirect,collnetchain,nvls,NVLSTree,PAT"),
    ("NCCL_ALGO", "^NVLS,NVLSTree"),
    ("NCCL_ALGO", "allreduce:tree"),
    ("NCCL_ALGO", "ring;allreduce:tree"),
    ("NCCL_ALGO", "allreduce:tree;broadcast:ring"),
    ("NCCL_ALGO", "ring,collnetdirect;allreduce:^tree,collnetdirect;ReduceScatter:ring"),
    ("NCCL_ALGO", "ring,;"),
    ("NCCL_PROTO", "^ll128"),
    ("NCCL_PROTO", "LL,Simple;allreduce:^LL"),
    # Whole numbers, at the ends of what NCCL takes.
    ("NCCL_NTHREADS", "64"),
    ("NCCL_MAX_CTAS", "64"),
    ("NCCL_MIN_CTAS", "1"),
    ("NCCL_CUMEM_ENABLE", "0"),
    ("NCCL_NVLS_ENABLE", "2"),
    ("NCCL_IB_GID_INDEX", "-1"),
    ("NCCL_IB_TIMEOUT", "22"),
    # Free text.
    ("NCCL_SOCKET_IFNAME", "^=docker0,lo"),
    ("NCCL_NET_PLUGIN", "none"),
    ("NCCL_DEBUG_FILE", "/tmp/nccl debug.%h.%p"),
    ("NCCL_IB_PKEY_VALUE", "0x8111"),
    ("NCCL_NET_MERGE_LEVEL", "PORT"),
    ("NCCL_SOMETHING_NEW", "16M"),
]


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_accepts(name: str, value: str) -> None:
    assert check_variable(name, value) is None


REFUSED_NAMES = [
    ("LD_PRELOAD", "only NCCL's own variables"),
    ("NCCL_", "is not an NCCL variable"),
    ("", "only NCCL's own variables"),
    ("NCCL_algo", "write NCCL_ALGO."),
    ("nccl_socket_ifname", "write NCCL_SOCKET_IFNAME."),
    ("NCCL_ALGO\n", "write NCCL_ALGO."),
    (" NCCL_ALGO", "write NCCL_ALGO."),
    ("NCCL-BUFFSIZE", "write NCCL_BUFFSIZE."),
    ("NCCL_ALGÖ", "write NCCL_ALGO."),
    ("TORCH_NCCL_AVOID_RECORD_STREAMS", "only NCCL's own variables"),
]


@pytest.mark.parametrize(("name", "advice"), REFUSED_NAMES)
def test_refuses_a_name(name: str, advice: str) -> None:
    problem = check_variable(name, "1")
    assert problem is not None
    assert repr(name) in problem
    assert advice in problem


REFUSED_VALUES = [
    ("NCCL_ALGO", "", "leave the variable out"),
    ("NCCL_NET_PLUGIN", "", "leave the variable out"),
    # Unprintable characters, in free text too.
    ("NCCL_ALGO", "Ring\n", "unprintable"),
    ("NCCL_NET_PLUGIN", "a\0b", "unprintable"),
    ("NCCL_NET_PLUGIN", "a\x1b[31m", "unprintable"),
    ("NCCL_NET_PLUGIN", "a\u2028b", "unprintable"),
    ("NCCL_NET_PLUGIN", "\udcff", "unprintable"),
    # Levels.
    ("NCCL_P2P_LEVEL", "sys", "silently ignores"),
    ("NCCL_P2P_LEVEL", "sys", "write SYS."),
    ("NCCL_P2P_LEVEL", " SYS", "write SYS."),
    ("NCCL_P2P_LEVEL", "NV4", "write NVL."),
    ("NCCL_P2P_LEVEL", "far", "write one of LOC, NVL, PIX, PXB, PHB, SYS."),
    ("NCCL_P2P_LEVEL", "5", "write SYS."),
    ("NCCL_P2P_LEVEL", "2x", "write PXB."),
    ("NCCL_P2P_LEVEL", "-1", "silently ignores"),
    ("NCCL_NET_GDR_LEVEL", "pix", "write PIX."),
    ("NCCL_P2P_PXN_LEVEL", "SYS", "write one of 0, 1, 2"),
    ("NCCL_P2P_PXN_LEVEL", "3", "write one of 0, 1, 2."),
    # Lists.
    ("NCCL_ALGO", '";import os#', "write one of Ring, Tree,"),
    ("NCCL_ALGO", "Rnig", "write Ring."),
    ("NCCL_ALGO", '"Ring"', "write Ring."),
    ("NCCL_ALGO", "Ring, Tree", "write Tree."),
    ("NCCL_ALGO", "ring,^tree", "write Tree."),
    ("NCCL_ALGO", "collnet", "write Collnet"),
    ("NCCL_ALGO", "allredcue:tree", "write AllReduce."),
    ("NCCL_ALGO", "sendrecv:ring", "write one of Broadcast, Reduce,"),
    ("NCCL_ALGO", "allreduce:tree;ring", "write allreduce:ring."),
    ("NCCL_ALGO", ";ring", "only the first entry may lack a function"),
    ("NCCL_ALGO", "allreduce:tree:ring", "reads only two parts"),
    ("NCCL_ALGO", "allreduce:", "write one of Ring,"),
    ("NCCL_ALGO", "^", "names nothing"),
    ("NCCL_ALGO", ";", "names nothing"),
    ("NCCL_ALGO", ":", "names nothing"),
    ("NCCL_PROTO", "Ring", "write one of LL, LL128, Simple."),
    ("NCCL_PROTO", "LL256", "write LL"),
    ("NCCL_PROTO", "simpel", "write Simple."),
    # Whole numbers.
    ("NCCL_BUFFSIZE", "16M", "as 16 or ignore it; write 16777216."),
    ("NCCL_BUFFSIZE", "4 kb", "write 4096."),
    ("NCCL_BUFFSIZE", "1GiB", "write 1073741824."),
    ("NCCL_BUFFSIZE", "4T", "write a whole number from 1 to 2147483647"),
    ("NCCL_BUFFSIZE", "16\N{KELVIN SIGN}", "as 16"),
    ("NCCL_BUFFSIZE", "0", "write a whole number from 1"),
    ("NCCL_BUFFSIZE", "-2", "write a whole number from 1"),
    ("NCCL_BUFFSIZE", "4294967296", "to 2147483647."),
    ("NCCL_BUFFSIZE", "9" * 5000, "plain decimal digits"),
    ("NCCL_BUFFSIZE", "1e6", "as 1 "),
    ("NCCL_BUFFSIZE", "١٦", "as 0 "),
    ("NCCL_NTHREADS", "96", "write one of 64, 128, 256, 512."),
    ("NCCL_NTHREADS", "0x200", "as 512 "),
    ("NCCL_NTHREADS", "1K", "write one of 64, 128, 256, 512,"),
    ("NCCL_MAX_NCHANNELS", "0", "write a whole number from 1"),
    ("NCCL_MAX_NCHANNELS", "016", "as 14 "),
    ("NCCL_MAX_CTAS", "65", "write a whole number from 1 to 64."),
    ("NCCL_P2P_NET_CHUNKSIZE", "512K", "write 524288."),
    ("NCCL_P2P_DISABLE", "true", "as 0 or ignore it; write one of 0, 1,"),
    ("NCCL_P2P_DISABLE", "2", "write one of 0, 1."),
]


@pytest.mark.parametrize(("name", "value", "advice"), REFUSED_VALUES)
def test_refuses_a_value(name: str, value: str, advice: str) -> None:
    problem = check_variable(name, value)
    assert problem is not None
    assert name in problem
    assert advice in problem
    assert problem.isprintable()
    assert problem.endswith(".")


@settings(deadline=5000)  # milliseconds: a busy machine passes, a walk through all of range(2**31) does not
@given(name=st.one_of(st.sampled_from(GRAMMARS), st.text()), value=st.text())
@example(name="NCCL_BUFFSIZE", value="9" * 5000)
@example(name="NCCL_BUFFSIZE", value="1\N{KELVIN SIGN}")
def test_whatever_is_accepted_is_one_printable_line(name: str, value: str) -> None:
    if check_variable(name, value) is None:
        assert name.startswith("NCCL_")
        assert value
        assert all(character >= " " and not "\x7f" <= character <= "\x9f" for character in name + value)


@settings(deadline=5000)
@given(value=st.text(alphabet="^;:,LringTreealducS128 ", max_size=30))
def test_an_accepted_list_names_only_what_nccl_knows(value: str) -> None:
    if check_variable("NCCL_PROTO", value) is None:
        words = value.lower().replace("^", "").replace(";", ",").replace(":", ",").split(",")
        assert {"ll", "ll128", "simple"} & set(words)


def test_near_miss_ignores_case_and_gives_up_on_a_stranger() -> None:
    assert near_miss("rign", ["Ring", "Tree"]) == "Ring"
    assert near_miss("zzz", ["Ring", "Tree"]) is None


class TestConfFiles:
    @pytest.fixture
    def system_file(self, tmp_path: Path) -> Path:
        return tmp_path / "etc-nccl.conf"

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        home = tmp_path / "home"
        home.mkdir()
        return home

    def test_no_file_gives_nothing(self, home: Path, system_file: Path) -> None:
        assert conf_settings({"HOME": str(home)}, system_file=system_file) == []
        assert conf_settings({}, system_file=system_file) == []

    def test_the_users_file_comes_before_the_systems(self, home: Path, system_file: Path) -> None:
        user_file = home / ".nccl.conf"
        user_file.write_text("# mine\nNCCL_PROTO=LL\n")
        system_file.write_text("NCCL_PROTO=Simple\nNCCL_DEBUG=WARN")
        assert conf_settings({"HOME": str(home)}, system_file=system_file) == [
            ConfSetting("NCCL_PROTO", "LL", user_file, 2),
            ConfSetting("NCCL_PROTO", "Simple", system_file, 1),
            ConfSetting("NCCL_DEBUG", "WARN", system_file, 2),
        ]

    def test_a_named_file_replaces_the_one_in_the_home(self, home: Path, system_file: Path, tmp_path: Path) -> None:
        named = tmp_path / "named.conf"
        named.write_text("NCCL_ALGO=Tree\n")
        (home / ".nccl.conf").write_text("NCCL_ALGO=Ring\n")
        environ = {"HOME": str(home), "NCCL_CONF_FILE": str(named)}
        assert [setting.value for setting in conf_settings(environ, system_file=system_file)] == ["Tree"]
        named.unlink()
        assert conf_settings(environ, system_file=system_file) == []
        environ["NCCL_CONF_FILE"] = ""
        assert [setting.value for setting in conf_settings(environ, system_file=system_file)] == ["Ring"]

    @pytest.mark.parametrize(
        ("line", "read"),
        [
            ("NCCL_SOCKET_IFNAME==ens1f0", [("NCCL_SOCKET_IFNAME", "=ens1f0")]),
            ("NCCL_PROTO=LL # fast", [("NCCL_PROTO", "LL # fast")]),
            ("NCCL_PROTO = LL", [("NCCL_PROTO ", " LL")]),
            ("NCCL_PROTO=LL\r", [("NCCL_PROTO", "LL\r")]),
            ("NCCL_PROTO=", [("NCCL_PROTO", "")]),
            ("#NCCL_PROTO=LL", []),
            ("NCCL_PROTO", []),
            ("=LL", []),
            ("", []),
        ],
    )
    def test_a_line_is_read_as_nccl_reads_it(self, line: str, read: list[tuple[str, str]], system_file: Path) -> None:
        system_file.write_bytes(line.encode() + b"\n")
        assert [(setting.name, setting.value) for setting in conf_settings({}, system_file=system_file)] == read

    def test_what_cannot_be_read_gives_nothing(self, tmp_path: Path) -> None:
        assert conf_settings({"NCCL_CONF_FILE": "a\0b"}, system_file=tmp_path) == []

    def test_bytes_that_are_not_utf_8_are_kept(self, system_file: Path) -> None:
        system_file.write_bytes(b"NCCL_NET_PLUGIN=\xff\nNCCL_PROTO=LL\n")
        assert [setting.name for setting in conf_settings({}, system_file=system_file)] == [
            "NCCL_NET_PLUGIN",
            "NCCL_PROTO",
        ]

    def test_a_default_overrides_what_the_administrator_wrote(self, system_file: Path) -> None:
        system_file.write_text("NCCL_PROTO=Simple\nNCCL_ALGO=Ring\nNCCL_DEBUG=WARN\n")
        defaults = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_NTHREADS": "512"}
        assert overridden_by_defaults(defaults, {}, system_file=system_file) == [
            ConfSetting("NCCL_PROTO", "Simple", system_file, 1)
        ]

    @pytest.mark.parametrize("value", ["LL128", ""])
    def test_a_variable_of_the_environment_gets_no_default(self, value: str, system_file: Path) -> None:
        system_file.write_text("NCCL_PROTO=Simple\n")
        assert overridden_by_defaults({"NCCL_PROTO": "LL"}, {"NCCL_PROTO": value}, system_file=system_file) == []

    def test_only_the_setting_that_holds_counts(self, home: Path, system_file: Path) -> None:
        user_file = home / ".nccl.conf"
        user_file.write_text("NCCL_PROTO=LL\nNCCL_ALGO=Tree\nNCCL_ALGO=Ring\n")
        system_file.write_text("NCCL_PROTO=Simple\n")
        defaults = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
        assert overridden_by_defaults(defaults, {"HOME": str(home)}, system_file=system_file) == [
            ConfSetting("NCCL_ALGO", "Tree", user_file, 2)
        ]
