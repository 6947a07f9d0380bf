"""The commands that are a request and its task: one row is a command and a function of Python."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from m2dr.core import requests
from m2dr.core.errors import missing_told
from m2dr.core.report import Report


@dataclass(frozen=True)
class Command:
    """A command; its help and its options are those of its request.

    Attributes:
        task: module and function that does it.
        request: what the task is asked, a dataclass.
    """

    task: str
    request: type[Any]

    @property
    def function(self) -> Callable[[Any], Report]:
        """The task, whose module is loaded now."""
        module, _, name = self.task.partition(":")
        with missing_told():
            task: Callable[[Any], Report] = getattr(import_module(f"m2dr.{module}"), name)
        return task

    def __call__(self, request: Any) -> Report:
        """Do what a request asks."""
        return self.function(request)


_TEXTS = "tasks.evaluating.sentence_tasks:evaluate_"
# By what is typed. In Python a function is called `index_fit`, as the words of its command are.
COMMANDS = {
    "index corpus": Command("tasks.indexing.index:index_corpus", requests.IndexRequest),
    "index fit": Command("tasks.indexing.fit_index:fit_index", requests.FitIndexRequest),
    "index list": Command("tasks.indexing.listing:list_indexes", requests.ListRequest),
    "index verify": Command("tasks.indexing.verify:verify", requests.VerifyRequest),
    "index import": Command("tasks.indexing.importing:import_vectors", requests.ImportRequest),
    "index push": Command("tasks.indexing.index:push_indexes", requests.PushRequest),
    "search": Command("tasks.searching.runs:search", requests.QueriesRequest),
    "mine": Command("tasks.training.mine:mine", requests.MineRequest),
    "bm25": Command("tasks.searching.runs:bm25", requests.Bm25Request),
    "fuse": Command("tasks.searching.runs:fuse", requests.FuseRequest),
    "serve": Command("serve.app:serve", requests.ServeRequest),
    "evaluate retrieval": Command("tasks.evaluating.evaluate:evaluate", requests.EvaluateRequest),
    "evaluate sts": Command(f"{_TEXTS}sts", requests.StsRequest),
    "evaluate classification": Command(f"{_TEXTS}classification", requests.ClassificationRequest),
    "evaluate pairs": Command(f"{_TEXTS}pairs", requests.PairsRequest),
    "evaluate mteb": Command("integrations.mteb:evaluate_mteb", requests.MtebRequest),
    "compare": Command("tasks.evaluating.compare:compare_folders", requests.CompareRequest),
    "pick": Command("tasks.evaluating.pick:pick_cut", requests.PickRequest),
    "figures": Command("tasks.evaluating.figures:draw_figures", requests.FiguresRequest),
    "encode": Command("tasks.encode:encode", requests.EncodeRequest),
    "export": Command("tasks.publish:export_model", requests.ExportRequest),
    "card": Command("tasks.publish:write_card", requests.CardRequest),
    "push": Command("tasks.publish:push_model", requests.PushModelRequest),
    "data check": Command("tasks.data:check_data", requests.CheckRequest),
}
