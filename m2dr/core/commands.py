"""The commands that are a request and its task: one row is a command and a function of Python."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from m2dr.core import requests
from m2dr.core.report import Report


@dataclass(frozen=True)
class Command:
    """A command; its help and its options are those of its request.

    Attributes:
        words: what is typed, such as "index fit".
        task: module and function that does it.
        request: what the task is asked, a dataclass.
    """

    words: str
    task: str
    request: type[Any]

    @property
    def function(self) -> Callable[[Any], Report]:
        """The task, whose module is loaded now."""
        module, _, name = self.task.partition(":")
        task: Callable[[Any], Report] = getattr(import_module(f"m2dr.{module}"), name)
        return task

    def __call__(self, request: Any) -> Report:
        """Do what a request asks."""
        return self.function(request)


_ROWS = (
    Command("index corpus", "tasks.indexing.index:index_corpus", requests.IndexRequest),
    Command("index fit", "tasks.indexing.fit_index:fit_index", requests.FitIndexRequest),
    Command("index list", "tasks.indexing.listing:list_indexes", requests.ListRequest),
    Command("index verify", "tasks.indexing.verify:verify", requests.VerifyRequest),
    Command("index import", "tasks.indexing.importing:import_vectors", requests.ImportRequest),
    Command("index push", "tasks.indexing.index:push_indexes", requests.PushRequest),
    Command("search", "tasks.searching.runs:search", requests.QueriesRequest),
    Command("mine", "tasks.training.mine:mine", requests.MineRequest),
    Command("bm25", "tasks.searching.runs:bm25", requests.Bm25Request),
    Command("fuse", "tasks.searching.runs:fuse", requests.FuseRequest),
    Command("serve", "serve.app:serve", requests.ServeRequest),
    Command("evaluate retrieval", "tasks.evaluating.evaluate:evaluate", requests.EvaluateRequest),
    Command("evaluate sts", "tasks.evaluating.sentence_tasks:evaluate_sts", requests.StsRequest),
    Command(
        "evaluate classification", "tasks.evaluating.sentence_tasks:evaluate_classification",
        requests.ClassificationRequest,
    ),
    Command(
        "evaluate pairs", "tasks.evaluating.sentence_tasks:evaluate_pairs",
        requests.PairsRequest,
    ),
    Command("evaluate mteb", "integrations.mteb:evaluate_mteb", requests.MtebRequest),
    Command("compare", "tasks.evaluating.compare:compare_folders", requests.CompareRequest),
    Command("pick", "tasks.evaluating.pick:pick_cut", requests.PickRequest),
    Command("figures", "tasks.evaluating.figures:draw_figures", requests.FiguresRequest),
    Command("encode", "tasks.encode:encode", requests.EncodeRequest),
    Command("export", "tasks.publish:export_model", requests.ExportRequest),
    Command("card", "tasks.publish:write_card", requests.CardRequest),
    Command("push", "tasks.publish:push_model", requests.PushModelRequest),
    Command("data check", "tasks.data:check_data", requests.CheckRequest),
)  # fmt: skip
COMMANDS = {row.words: row for row in _ROWS}
FUNCTIONS = {row.words.replace(" ", "_"): row for row in _ROWS}  # by their names in Python
