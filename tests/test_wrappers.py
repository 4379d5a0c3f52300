"""The proof behind `eagle3-delegation`, on small trees in SGLang's shape."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from patcher.target import Target
from patcher.wrappers import METHODS, NoWrapper, Verdict, Wrapper, Wrappers, find, survey

MakeTree = Callable[..., Target]

MM_UTILS = """\
def general_mm_embed_routine(input_ids, forward_batch, language_model, multimodal_model=None, **kwargs):
    embeds = language_model.get_input_embeddings()(input_ids)
    with record("prefill"):
        hidden_states = language_model(input_ids=None, forward_batch=forward_batch, input_embeds=embeds, **kwargs)
    return hidden_states
"""

TINY = """\
from typing import List, Optional
from torch import nn


class TinyModel(nn.Module):
    def __init__(self, config):
        self.layers_to_capture = []

    def forward(self, input_ids, positions, forward_batch, input_embeds=None):
        kept = [layer for layer in self.layers if layer in self.layers_to_capture]
        return input_embeds, kept


class TinyForCausalLM(nn.Module):
    def __init__(self, config):
        self.model = self._body(config)
        self.capture_aux_hidden_states = False

    def _body(self, config):
        return TinyModel(config)

    def forward(self, input_ids, positions, forward_batch, input_embeds=None):
        hidden_states, aux_hidden_states = self.model(input_ids, positions, forward_batch, input_embeds), None
        if self.capture_aux_hidden_states:
            hidden_states, aux_hidden_states = hidden_states
        return self.logits_processor(input_ids, hidden_states, self.lm_head, forward_batch, aux_hidden_states)

    def set_eagle3_layers_to_capture(self, layer_ids: Optional[List[int]] = None):
        self.capture_aux_hidden_states = True
        self.model.layers_to_capture = [one + 1 for one in layer_ids or []]

    def get_embed_and_head(self):
        return self.model.embed_tokens.weight, self.lm_head.weight

    def set_embed_and_head(self, embed, head):
        self.lm_head.weight = head


class SmallForCausalLM(TinyForCausalLM):
    pass


class BareForCausalLM(nn.Module):
    def forward(self, input_ids, positions, forward_batch, input_embeds=None):
        return self.logits_processor(input_ids, self.model(input_ids), self.lm_head, forward_batch)


EntryClass = [TinyForCausalLM, SmallForCausalLM, BareForCausalLM]
"""

EYE = """\
from torch import nn
from sglang.srt.managers.mm_utils import general_mm_embed_routine
from sglang.srt.models.tiny import BareForCausalLM, SmallForCausalLM, TinyForCausalLM, TinyModel


class EyeForConditionalGeneration(nn.Module):
    def __init__(self, config):
        super().__init__()
        {init}

    def forward(self, input_ids, positions, forward_batch, get_embedding=False):
        {forward}


EntryClass = EyeForConditionalGeneration
"""

HELD = "self.language_model = TinyForCausalLM(config)"
ROUTED = """\
hidden_states = general_mm_embed_routine(
    input_ids=input_ids, forward_batch=forward_batch, language_model=self.language_model, positions=positions
)
return hidden_states"""


def eye(init: str = HELD, forward: str = ROUTED, more: str = "") -> str:
    """A module with one wrapper; `more` are further members of the class."""
    text = EYE.format(init=init.replace("\n", "\n        "), forward=forward.replace("\n", "\n        "))
    return text.replace("\n\nEntryClass", f"\n{more and _indented(more)}\n\nEntryClass")


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in dedent(text).strip().splitlines())


@pytest.fixture
def tree(tmp_path: Path) -> MakeTree:
    """Writes modules as a tree: those given as keywords into srt/models, the mapping's by path."""

    def write(files: dict[str, str | bytes] | None = None, /, **models: str) -> Target:
        root = tmp_path / "sglang"
        everything: dict[str, str | bytes] = {
            "__init__.py": "",
            "srt/__init__.py": "",
            "srt/models/__init__.py": "",
            "srt/managers/mm_utils.py": MM_UTILS,
            "srt/models/tiny.py": TINY,
            **{f"srt/models/{name}.py": text for name, text in models.items()},
            **(files or {}),
        }
        for path, text in everything.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(text if isinstance(text, bytes) else text.encode())
        return Target(root)

    return write


def the(target: Target, model: str = "eye") -> Wrapper:
    found = find(target, model)
    assert isinstance(found, Wrapper), found
    return found


def test_a_wrapper_that_fits_says_what_it_holds_and_where_the_proof_is(tree: MakeTree) -> None:
    wrapper = the(tree(eye=eye()))
    assert wrapper == Wrapper(
        file="srt/models/eye.py",
        class_name="EyeForConditionalGeneration",
        line=6,
        verdict=Verdict.FITS,
        reason="self.language_model is TinyForCausalLM (srt/models/eye.py:9), which has all three methods,"
        " and forward goes through it (srt/models/eye.py:12)",
        has=(),
        inner="language_model",
        inner_classes=(("TinyForCausalLM", "srt/models/tiny.py"),),
    )
    assert (wrapper.stem, wrapper.inner_class, wrapper.inner_file) == ("eye", "TinyForCausalLM", "srt/models/tiny.py")


FITTING_INITS = {
    "none first": f"self.language_model = None\nif not config.encoder_only:\n    {HELD}",
    "one of two": f"if config.small:\n    self.language_model = SmallForCausalLM(config)\nelse:\n    {HELD}",
    "an expression": "self.language_model = SmallForCausalLM(config) if config.small else TinyForCausalLM(config)",
    "a local class": "kind = TinyForCausalLM\nself.language_model = kind(config)",
    "a local object": "model = TinyForCausalLM(config)\nself.language_model = model",
    "a local import": "from sglang.srt.models.tiny import TinyForCausalLM as Tiny\nself.language_model = Tiny(config)",
    "a relative import": "from .tiny import TinyForCausalLM as Tiny\nself.language_model = Tiny(config)",
    "a module": "import sglang.srt.models.tiny as tiny\nself.language_model = tiny.TinyForCausalLM(config)",
    "a dotted module": (
        "import sglang.srt.models.tiny\nself.language_model = sglang.srt.models.tiny.TinyForCausalLM(config)"
    ),
    "a module of a package": "from sglang.srt.models import tiny\nself.language_model = tiny.TinyForCausalLM(config)",
    "setattr": 'setattr(self, "language_model", TinyForCausalLM(config))',
    "inside a block": f"with self.mark():\n    {HELD}",
}


@pytest.mark.parametrize("init", FITTING_INITS.values(), ids=FITTING_INITS.keys())
def test_the_inner_class_is_found_however_it_is_made(tree: MakeTree, init: str) -> None:
    wrapper = the(tree(eye=eye(init)))
    assert wrapper.verdict is Verdict.FITS, wrapper.reason
    assert wrapper.inner == "language_model"
    assert "TinyForCausalLM" in str(wrapper.inner_class)


def test_the_inner_class_is_found_in_what_a_method_returns(tree: MakeTree) -> None:
    make = "def make(self, config):\n    return TinyForCausalLM(config)"
    assert the(tree(eye=eye("self.language_model = self.make(config)", more=make))).verdict is Verdict.FITS


def test_the_inner_class_is_found_in_a_method_that_init_calls(tree: MakeTree) -> None:
    build = f"def build(self, config):\n    {HELD}"
    assert the(tree(eye=eye("self.build(config)", more=build))).verdict is Verdict.FITS


def test_the_inner_class_is_found_in_an_attribute_of_the_class(tree: MakeTree) -> None:
    wrapper = the(tree(eye=eye("self.language_model = self.kind(config)", more="kind = TinyForCausalLM")))
    assert (wrapper.verdict, wrapper.inner_class) == (Verdict.FITS, "TinyForCausalLM")


UNCLEAR_INITS = {
    "a function": ("self.language_model = init_registered_model(config)", "init_registered_model"),
    "a parameter": ("self.language_model = config(1)", "config is a parameter of __init__"),
    "a parameter with a default": (
        "if config is None:\n    config = TinyForCausalLM\nself.language_model = config(1)",
        "config is a parameter of __init__",
    ),
    "a table": ("kind = KINDS[config.kind]\nself.language_model = kind(config)", "KINDS[config.kind]"),
    "unpacking": ("self.language_model, self.other = make(config)", "from unpacking"),
    "another library": ("self.language_model = nn.Linear(1, 1)", "torch.nn.Linear is not part of SGLang"),
    "one unknown of two": (f"if config.x:\n    {HELD}\nelse:\n    self.language_model = load(config)", "load"),
    "an import that is not there": (
        "from sglang.srt.models.gone import GoneForCausalLM\nself.language_model = GoneForCausalLM(config)",
        "GoneForCausalLM is not a class that can be found in this tree",
    ),
}


@pytest.mark.parametrize(("init", "why"), UNCLEAR_INITS.values(), ids=UNCLEAR_INITS.keys())
def test_an_inner_class_that_cannot_be_told_does_not_fit(tree: MakeTree, init: str, why: str) -> None:
    wrapper = the(tree(eye=eye(init)))
    assert wrapper.verdict is Verdict.UNFIT
    assert "cannot tell which class self.language_model is of" in wrapper.reason
    assert why in wrapper.reason
    assert "srt/models/eye.py:" in wrapper.reason


def test_a_model_that_is_made_only_when_weights_are_loaded_does_not_fit(tree: MakeTree) -> None:
    late = f"def load_weights(self, weights):\n    config = 1\n    {HELD}"
    wrapper = the(tree(eye=eye("self.language_model = None", more=late)))
    assert wrapper.verdict is Verdict.UNFIT
    assert "is not made when EyeForConditionalGeneration is" in wrapper.reason


def test_an_init_that_never_runs_does_not_count(tree: MakeTree) -> None:
    base = eye("self.language_model = load(config)").replace("EyeFor", "OldFor")
    new = (
        eye()
        .replace("nn.Module", "OldForConditionalGeneration")
        .replace("super().__init__()", "nn.Module.__init__(self)")
    )
    new = "from sglang.srt.models.old import OldForConditionalGeneration\n" + new
    assert the(tree(eye=new, old=base)).verdict is Verdict.FITS
    running = new.replace("nn.Module.__init__(self)", "super().__init__(config)")
    assert the(tree(eye=running, old=base)).verdict is Verdict.UNFIT


FITTING_FORWARDS = {
    "a call": "return self.language_model(input_ids, positions, forward_batch)",
    "its forward": "return self.language_model.forward(input_ids, positions, forward_batch)",
    "both ways": "if x:\n    out = self.language_model(1)\nelse:\n    out = self.language_model.forward(2)\nreturn out",
    "a short name": "model = self.language_model\nout = model(input_ids)\nassert out\nreturn out",
    "none else": "if not input_ids:\n    return None\nreturn self.language_model(input_ids)",
    "an expression": "return self.language_model(1) if input_ids else self.language_model(2)",
    "by position": "return general_mm_embed_routine(input_ids, forward_batch, self.language_model)",
    "its module": (
        "from sglang.srt.managers import mm_utils\n"
        "return mm_utils.general_mm_embed_routine(input_ids, forward_batch, language_model=self.language_model)"
    ),
    "a helper": "return self.run(input_ids)",
}


@pytest.mark.parametrize("forward", FITTING_FORWARDS.values(), ids=FITTING_FORWARDS.keys())
def test_a_forward_that_returns_what_the_model_returned_fits(tree: MakeTree, forward: str) -> None:
    helper = "def run(self, input_ids):\n    return self.language_model(input_ids)"
    wrapper = the(tree(eye=eye(forward=forward, more=helper)))
    assert wrapper.verdict is Verdict.FITS, wrapper.reason


LOSING_FORWARDS = {
    "its body": (
        "return self.language_model.model(input_ids)",
        "runs self.language_model.model (srt/models/eye.py:12)",
    ),
    "its body, routed": (
        "hidden = general_mm_embed_routine(1, 2, self.language_model.model)\nreturn self.logits_processor(hidden)",
        "past the forward of TinyForCausalLM",
    ),
    "its own logits": (
        "hidden_states = self.language_model(input_ids)\nreturn self.logits_processor(input_ids, hidden_states)",
        "forward returns self.logits_processor(...) (srt/models/eye.py:13)",
    ),
    "one way of two": (
        "if get_embedding:\n    return self.pooler(input_ids)\nreturn self.language_model(input_ids)",
        "forward returns self.pooler(...)",
    ),
    "a changed result": ("out = self.language_model(input_ids)\nout = out[0]\nreturn out", "forward returns out[0]"),
    "an unpacked result": ("out, _ = self.language_model(input_ids)\nreturn out", "forward returns out "),
    "a parameter": ("if get_embedding:\n    input_ids = self.language_model(1)\nreturn input_ids", "returns input_ids"),
    "an unknown function": ("return run(self.language_model)", "run, which cannot be followed"),
    "nothing": ("self.language_model(input_ids)", "forward returns nothing"),
    "itself": ("return self.forward(input_ids)", "forward calls itself"),
}


@pytest.mark.parametrize(("forward", "why"), LOSING_FORWARDS.values(), ids=LOSING_FORWARDS.keys())
def test_a_forward_that_loses_the_hidden_states_does_not_fit(tree: MakeTree, forward: str, why: str) -> None:
    wrapper = the(tree(eye=eye(forward=forward)))
    assert wrapper.verdict is Verdict.UNFIT
    assert why in wrapper.reason


ROUTINES = {
    "runs the body": MM_UTILS.replace("= language_model(", "= language_model.model("),
    "replaces the model": MM_UTILS.replace("    with", "    language_model = language_model.model\n    with"),
    "takes the model among the rest": MM_UTILS.replace("language_model, multimodal_model=None, ", ""),
    "is decorated": f"def twice(f):\n    return f\n\n\n@twice\n{MM_UTILS}",
}


@pytest.mark.parametrize("routine", ROUTINES.values(), ids=ROUTINES.keys())
def test_the_routine_that_runs_the_model_is_proved_too(tree: MakeTree, routine: str) -> None:
    wrapper = the(tree({"srt/managers/mm_utils.py": routine}, eye=eye()))
    assert wrapper.verdict is Verdict.UNFIT
    assert "forward does not return what TinyForCausalLM in self.language_model returned" in wrapper.reason


def test_a_forward_that_is_the_models_own_fits(tree: MakeTree) -> None:
    init = "self.thinker = TinyForCausalLM(config)\nself.forward = self.thinker.forward"
    assert the(tree(eye=eye(init, "raise NotImplementedError"))).verdict is Verdict.FITS
    other = the(tree(eye=eye(f"{init}\nself.forward = self.other", "raise NotImplementedError")))
    assert "self.forward is set to self.other" in other.reason


INNER_FAULTS = {
    "one method less": ("def set_embed_and_head", "def set_embed", "has no set_embed_and_head"),
    "a stub": (
        "return self.model.embed_tokens.weight, self.lm_head.weight",
        "raise NotImplementedError",
        "not implement",
    ),
    "no layers (0.4.8)": (", layer_ids: Optional[List[int]] = None", "", "does not take the layers"),
    "states that are not returned": (
        "        if self.capture_aux_hidden_states:\n            hidden_states, aux_hidden_states = hidden_states\n",
        "",
        "never reads capture_aux_hidden_states",
    ),
    "a body that captures nothing": (
        "if layer in self.layers_to_capture",
        "",
        "TinyModel (srt/models/tiny.py:5) has no",
    ),
}


@pytest.mark.parametrize(("before", "after", "why"), INNER_FAULTS.values(), ids=INNER_FAULTS.keys())
def test_an_inner_class_that_would_not_serve_does_not_fit(tree: MakeTree, before: str, after: str, why: str) -> None:
    wrapper = the(tree({"srt/models/tiny.py": TINY.replace(before, after)}, eye=eye()))
    assert wrapper.verdict is Verdict.UNFIT
    assert why in wrapper.reason


def test_states_that_are_handed_on_unasked_are_returned(tree: MakeTree) -> None:
    tiny = TINY.replace("if self.capture_aux_hidden_states:", "if isinstance(hidden_states, tuple):")
    assert the(tree({"srt/models/tiny.py": tiny}, eye=eye())).verdict is Verdict.FITS


def test_every_class_that_the_model_can_be_of_has_to_serve(tree: MakeTree) -> None:
    init = f"if config.old:\n    self.language_model = BareForCausalLM(config)\nelse:\n    {HELD}"
    wrapper = the(tree(eye=eye(init)))
    assert wrapper.verdict is Verdict.UNFIT
    assert "self.language_model can be BareForCausalLM" in wrapper.reason
    assert wrapper.inner_class == "BareForCausalLM or TinyForCausalLM"


def test_a_bare_body_is_called_one(tree: MakeTree) -> None:
    forward = "hidden = general_mm_embed_routine(1, 2, language_model=self.model)\nreturn self.logits_processor(hidden)"
    wrapper = the(tree(eye=eye("self.model = TinyModel(config)", forward)))
    assert (wrapper.verdict, wrapper.inner, wrapper.inner_class) == (Verdict.UNFIT, "model", "TinyModel")
    assert "a body without its output head" in wrapper.reason


METHOD_BODIES = [f"def {name}(self, *args):\n    return self.language_model.{name}(*args)\n" for name in METHODS]


def test_a_class_with_all_three_is_upstream(tree: MakeTree) -> None:
    wrapper = the(tree(eye=eye(more="\n".join(METHOD_BODIES))))
    assert (wrapper.verdict, wrapper.has) == (Verdict.UPSTREAM, METHODS)
    assert wrapper.inner == "language_model"


def test_methods_of_a_base_in_another_file_count(tree: MakeTree) -> None:
    new = """\
        from .eye import EyeForConditionalGeneration as Base


        class NewForConditionalGeneration(Base):
            pass
        """
    target = tree(eye=eye(more="\n".join(METHOD_BODIES)), new=dedent(new))
    wrapper = the(target, "new")
    assert (wrapper.verdict, wrapper.has) == (Verdict.UPSTREAM, METHODS)
    assert "srt/models/eye.py" in wrapper.reason


def test_what_a_base_in_another_file_holds_and_runs_counts(tree: MakeTree) -> None:
    new = """\
        from sglang.srt.models.eye import *


        class NewForConditionalGeneration(EyeForConditionalGeneration):
            pass
        """
    wrapper = the(tree(eye=eye(), new=dedent(new)), "new")
    assert (wrapper.verdict, wrapper.inner) == (Verdict.FITS, "language_model")


def test_a_forward_through_super_is_followed(tree: MakeTree) -> None:
    new = """\
        from sglang.srt.models.eye import EyeForConditionalGeneration


        class NewForConditionalGeneration(EyeForConditionalGeneration):
            def forward(self, *args, **kwargs):
                out = super().forward(*args, **kwargs)
                out.next_token_logits.clamp_(0)
                return out
        """
    assert the(tree(eye=eye(), new=dedent(new)), "new").verdict is Verdict.FITS


def test_methods_that_are_assigned_count(tree: MakeTree) -> None:
    text = eye(more="get_embed_and_head = None") + "\nEyeForConditionalGeneration.set_embed_and_head = print\n"
    assert the(tree(eye=text)).has == ("get_embed_and_head", "set_embed_and_head")


def test_a_class_with_some_of_them_is_partial(tree: MakeTree) -> None:
    wrapper = the(tree(eye=eye(more=METHOD_BODIES[1])))
    assert (wrapper.verdict, wrapper.has) == (Verdict.PARTIAL, ("get_embed_and_head",))
    assert "no set_eagle3_layers_to_capture, no set_embed_and_head" in wrapper.reason


def test_a_class_that_lacks_only_what_a_draft_needs_says_so(tree: MakeTree) -> None:
    wrapper = the(tree(eye=eye(more="\n".join(METHOD_BODIES[:2]))))
    assert wrapper.verdict is Verdict.PARTIAL
    assert wrapper.reason.endswith("no set_embed_and_head, which EAGLE-3 calls on the draft model only")


def test_a_class_that_hands_on_every_name_proves_nothing(tree: MakeTree) -> None:
    wrapper = the(tree(eye=eye(more="def __getattr__(self, name):\n    return getattr(self.language_model, name)")))
    assert wrapper.verdict is Verdict.UNFIT
    assert "its __getattr__ (srt/models/eye.py:" in wrapper.reason


def test_a_base_that_cannot_be_found_proves_nothing(tree: MakeTree) -> None:
    text = (
        eye()
        .replace("(nn.Module)", "(GoneModel)")
        .replace("from torch import nn", "from sglang.srt.gone import GoneModel")
    )
    wrapper = the(tree(eye=text))
    assert wrapper.verdict is Verdict.UNFIT
    assert "its base GoneModel (srt/models/eye.py:6) cannot be found" in wrapper.reason


def test_a_wrapper_without_a_model_says_so(tree: MakeTree) -> None:
    wrapper = the(tree(eye=eye("self.decoder = nn.Linear(1, 1)", "return self.decoder(input_ids)")))
    assert (wrapper.verdict, wrapper.inner) == (Verdict.UNFIT, None)
    assert "it holds no language model" in wrapper.reason


def test_of_two_models_the_one_that_forward_runs_counts(tree: MakeTree) -> None:
    init = "self.talker = TinyForCausalLM(config)\nself.thinker = TinyForCausalLM(config)"
    assert the(tree(eye=eye(init, "return self.thinker(input_ids)"))).inner == "thinker"
    torn = the(tree(eye=eye(init, "return self.pick()(input_ids)")))
    assert (torn.verdict, torn.inner) == (Verdict.UNFIT, None)
    assert "more than one language model (talker, thinker)" in torn.reason


CHAT = """\
from torch import nn
from .tiny import TinyForCausalLM


class ChatVLM(nn.Module):
    def __init__(self, config):
        self.llm = TinyForCausalLM(config)

    def forward(self, input_ids):
        return self.llm(input_ids)


class Unoffered(ChatVLM):
    pass


EntryClass = [ChatVLM]
"""


def test_a_survey_lists_wrappers_by_name_and_by_what_they_hold(tree: MakeTree) -> None:
    again = "from sglang.srt.models.chat import ChatVLM\n\n\nclass Again(ChatVLM):\n    pass\n\n\nEntryClass = Again\n"
    below = eye().replace("EyeFor", "BelowFor")
    target = tree({"srt/models/parts/below.py": below}, again=again, chat=CHAT, eye=eye())
    assert [(one.file, one.class_name, one.verdict) for one in survey(target)] == [
        ("srt/models/again.py", "Again", Verdict.FITS),
        ("srt/models/chat.py", "ChatVLM", Verdict.FITS),
        ("srt/models/eye.py", "EyeForConditionalGeneration", Verdict.FITS),
        ("srt/models/parts/below.py", "BelowForConditionalGeneration", Verdict.FITS),
    ]


def test_a_survey_sees_a_model_that_comes_through_its_module(tree: MakeTree) -> None:
    text = CHAT.replace("from .tiny import TinyForCausalLM", "from sglang.srt.models import tiny")
    text = text.replace(
        "self.llm = TinyForCausalLM(config)", "kind = tiny.TinyForCausalLM\n        self.llm = kind(config)"
    )
    assert [one.class_name for one in survey(tree(chat=text))] == ["ChatVLM"]


def test_a_survey_needs_no_disk_and_leaves_the_garbage_collector_as_it_was() -> None:
    files = {"srt/models/tiny.py": TINY, "srt/models/chat.py": CHAT}
    assert gc.isenabled()
    found = Wrappers(lambda path: files[path].encode() if path in files else None, files).survey()
    assert [one.class_name for one in found] == ["ChatVLM"]
    assert gc.isenabled()


def test_a_file_that_does_not_parse_is_left_out(tree: MakeTree) -> None:
    target = tree(broken="class BrokenForConditionalGeneration(:\n", eye=eye())
    assert [one.class_name for one in survey(target)] == ["EyeForConditionalGeneration"]
    assert find(target, "broken") == NoWrapper("broken", "srt/models/broken.py is not Python that can be parsed")


def test_byte_order_marks_and_line_endings_do_not_matter(tree: MakeTree) -> None:
    data = b"\xef\xbb\xbf" + eye().replace("\n", "\r\n").encode()
    assert [one.verdict for one in survey(tree({"srt/models/eye.py": data}))] == [Verdict.FITS]


TWO = eye() + "\n\nclass EarForConditionalGeneration(EyeForConditionalGeneration):\n    pass\n"


def test_two_wrappers_in_one_file_are_told_apart_by_name(tree: MakeTree) -> None:
    target = tree(eye=TWO)
    torn = find(target, "eye")
    assert isinstance(torn, NoWrapper)
    assert torn.names == ("EyeForConditionalGeneration", "EarForConditionalGeneration")
    assert "can mean 2 classes (srt/models/eye.py:6, srt/models/eye.py:22)" in torn.reason
    for model in ("EarForConditionalGeneration", "eye.EarForConditionalGeneration"):
        assert the(target, model).class_name == "EarForConditionalGeneration"


def test_one_name_in_two_files_is_told_apart_by_the_file(tree: MakeTree) -> None:
    target = tree(eye=eye(), ear=eye())
    torn = find(target, "EyeForConditionalGeneration")
    assert isinstance(torn, NoWrapper)
    assert torn.names == ("ear.EyeForConditionalGeneration", "eye.EyeForConditionalGeneration")
    assert the(target, torn.names[0]).file == "srt/models/ear.py"


@pytest.mark.parametrize("model", ["eye.py", "srt/models/eye.py"])
def test_a_path_means_its_file(tree: MakeTree, model: str) -> None:
    assert the(tree(eye=eye()), model).stem == "eye"


@pytest.mark.parametrize(
    ("model", "near"),
    [
        ("eyes", "eye"),
        ("EYE", "eye"),
        ("EyeForConditionalGen", "EyeForConditionalGeneration"),
        ("eye.EarForConditionalGeneration", "EyeForConditionalGeneration"),
    ],
)
def test_a_near_miss_is_named(tree: MakeTree, model: str, near: str) -> None:
    missed = find(tree(eye=eye()), model)
    assert isinstance(missed, NoWrapper)
    assert near in missed.names


def test_a_file_without_models_says_so(tree: MakeTree) -> None:
    target = tree(helpers="def add(x, y):\n    return x + y\n")
    assert find(target, "helpers") == NoWrapper("helpers", "srt/models/helpers.py offers no model class")


def test_a_model_that_is_no_wrapper_is_judged_when_asked_for(tree: MakeTree) -> None:
    assert the(tree(), "TinyForCausalLM").verdict is Verdict.UPSTREAM


def test_finding_one_model_parses_only_what_its_proof_needs(tree: MakeTree) -> None:
    target = tree(eye=eye(), other=CHAT)
    asked: list[str] = []

    def read(path: str) -> bytes | None:
        asked.append(path)
        return target.read(path)

    files = [f"srt/models/{name}.py" for name in ("eye", "other", "tiny")]
    assert isinstance(Wrappers(read, files).find("eye"), Wrapper)
    assert "srt/models/other.py" not in asked
    assert len(asked) == len(set(asked))
