"""EAGLE-3 for Kimi-K2.5: `eagle3-delegation` with its wrapper fixed, for the release that lacks the methods."""

from patcher.patch import Edit, Example, Outcome, Params, Patch, State
from patcher.probe import Probe
from patcher.source import Source
from patches.eagle3_delegation import add_methods, delegation_probes

ID = "kimi-k25-eagle3"
WRAPPER = "KimiK25ForConditionalGeneration"
INNER = "language_model"


def rewrite(source: Source, params: Params) -> Outcome:
    """Add the three methods to the end of the wrapper class."""
    return add_methods(source, WRAPPER, INNER, ID)


def probes(params: Params) -> list[Probe]:
    """Call the methods as SGLang does, and on wrappers whose language model cannot take the call."""
    return delegation_probes(WRAPPER, INNER)


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
    id=ID,
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
    edits=(Edit(paths=("srt/models/kimi_k25.py",), rewrite=rewrite),),
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
