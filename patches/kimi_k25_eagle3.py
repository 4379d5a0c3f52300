"""EAGLE-3 for Kimi-K2.5: three methods that the wrapper class lacks."""

from patcher.patch import Edit, Example, Outcome, Params, Patch, State
from patcher.probe import DelegationProbe, Inner, MethodCall, Probe
from patcher.source import Source

WRAPPER = "KimiK25ForConditionalGeneration"


def add_methods(source: Source, params: Params) -> Outcome:
    """Add the methods to the end of the wrapper class; each hands its call to `self.language_model`."""
    from patcher.transforms.delegation import Method, delegate

    return delegate(
        source,
        class_name=WRAPPER,
        to="language_model",
        methods=[
            # The model runner calls it with layer ids at start, and without any in its warm-up.
            Method(
                "set_eagle3_layers_to_capture",
                parameters=(("layer_ids", "Optional[List[int]]", "None"),),
                doc="Choose the layers whose hidden states EAGLE-3 drafts from.",
            ),
            # The EAGLE worker asks the target model for its weights, which the draft model shares.
            Method(
                "get_embed_and_head",
                returns="Tuple[torch.Tensor, torch.Tensor]",
                doc="Return the embedding and output head that the draft model shares.",
            ),
            Method(
                "set_embed_and_head",
                parameters=(("embed", "torch.Tensor", None), ("head", "torch.Tensor", None)),
                doc="Replace the embedding and output head.",
            ),
        ],
        comment=["sglang-patch: kimi-k25-eagle3", "EAGLE-3 calls these on the wrapper; the language model has them."],
    )


def probes(params: Params) -> list[Probe]:
    """Call the methods as SGLang does, and on wrappers whose language model cannot take the call."""
    calls = [
        MethodCall("set_eagle3_layers_to_capture", ([2, 30, 58],)),
        MethodCall("set_eagle3_layers_to_capture"),
        MethodCall("get_embed_and_head", returns=True),
        MethodCall("set_embed_and_head", ("embed", "head")),
    ]
    found: list[Probe] = [DelegationProbe("each call reaches language_model", WRAPPER, "language_model", calls)]
    kinds: dict[str, Inner] = {
        "no language_model": "missing",
        "None": "none",
        "one without the methods": "without-methods",
    }
    for name, inner in kinds.items():
        found.append(DelegationProbe(f"{name} is said clearly", WRAPPER, "language_model", calls, inner))
    return found


BEFORE = """\
from typing import List, Optional, Tuple

import torch
from torch import nn


class KimiK25ForConditionalGeneration(nn.Module):
    def __init__(self, language_model):
        self.language_model = language_model


EntryClass = [KimiK25ForConditionalGeneration]
"""

AFTER = """\
from typing import List, Optional, Tuple

import torch
from torch import nn


class KimiK25ForConditionalGeneration(nn.Module):
    def __init__(self, language_model):
        self.language_model = language_model

    # sglang-patch: kimi-k25-eagle3
    # EAGLE-3 calls these on the wrapper; the language model has them.
    def set_eagle3_layers_to_capture(
        self, layer_ids: Optional[List[int]] = None
    ) -> None:
        \"\"\"Choose the layers whose hidden states EAGLE-3 drafts from.\"\"\"
        inner = getattr(self, "language_model", None)
        if inner is None:
            raise AttributeError(
                "KimiK25ForConditionalGeneration has no language_model"
            )
        if not hasattr(inner, "set_eagle3_layers_to_capture"):
            raise AttributeError(
                f"{type(inner).__name__}, the language_model, has no set_eagle3_layers_to_capture()"
            )
        inner.set_eagle3_layers_to_capture(layer_ids)

    def get_embed_and_head(self) -> Tuple[torch.Tensor, torch.Tensor]:
        \"\"\"Return the embedding and output head that the draft model shares.\"\"\"
        inner = getattr(self, "language_model", None)
        if inner is None:
            raise AttributeError(
                "KimiK25ForConditionalGeneration has no language_model"
            )
        if not hasattr(inner, "get_embed_and_head"):
            raise AttributeError(
                f"{type(inner).__name__}, the language_model, has no get_embed_and_head()"
            )
        return inner.get_embed_and_head()

    def set_embed_and_head(self, embed: torch.Tensor, head: torch.Tensor) -> None:
        \"\"\"Replace the embedding and output head.\"\"\"
        inner = getattr(self, "language_model", None)
        if inner is None:
            raise AttributeError(
                "KimiK25ForConditionalGeneration has no language_model"
            )
        if not hasattr(inner, "set_embed_and_head"):
            raise AttributeError(
                f"{type(inner).__name__}, the language_model, has no set_embed_and_head()"
            )
        inner.set_embed_and_head(embed, head)


EntryClass = [KimiK25ForConditionalGeneration]
"""

ONE_BY_HAND = """\
class KimiK25ForConditionalGeneration:
    def __init__(self, language_model):
        self.language_model = language_model

    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.language_model.set_eagle3_layers_to_capture(layer_ids)
"""

PATCH = Patch(
    id="kimi-k25-eagle3",
    revision=1,
    summary="EAGLE-3 speculative decoding for Kimi-K2.5",
    why=(
        "EAGLE-3 asks the target model for three methods. KimiK25ForConditionalGeneration of SGLang 0.5.9 wraps a"
        " language model that has them, but does not hand the calls on, so the server stops at start-up."
    ),
    upstream="in SGLang from 0.5.10",
    retire="when every host runs SGLang 0.5.10 or newer; status says `upstream` there",
    releases=">=0.5.8.post1,<0.5.10",
    limits=("Only the wrapper changes: the draft model and its weights are yours to bring.",),
    edits=(Edit(paths=("srt/models/kimi_k25.py",), rewrite=add_methods),),
    probes=probes,
    examples=(
        Example("the wrapper of 0.5.9", BEFORE, AFTER),
        Example(
            "a release that has the methods", AFTER.replace("    # sglang-patch: kimi-k25-eagle3\n", ""), State.UPSTREAM
        ),
        Example("one method added by hand", ONE_BY_HAND, State.PARTIAL),
        Example("a release without the class", "class KimiVLForConditionalGeneration:\n    pass\n", State.ABSENT),
        Example(
            "a wrapper that holds no language model",
            "class KimiK25ForConditionalGeneration:\n    def __init__(self):\n        self.model = None\n",
            State.CONFLICT,
        ),
    ),
)
