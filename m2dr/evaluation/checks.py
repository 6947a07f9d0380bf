"""Checks of a grid and of its rankings; each that fails gives a sentence that says why."""

from collections.abc import Mapping

from m2dr.core.errors import counted
from m2dr.core.records import Cut, ModelCard

NEAR_RANDOM = 0.1  # share of the best value


def query_checks(
    queries: int, unanswered: int = 0, unanswerable: int = 0, unknown_documents: int = 0
) -> list[str]:
    """Return a sentence for each thing that the queries and judgements of a split lack.

    Args:
        queries: number of judged queries.
        unanswered: number of them without a ranking.
        unanswerable: number of them without a relevant document.
        unknown_documents: number of judgements of documents that the corpus does not hold.
    """
    found = []
    if unanswered:
        found.append(
            f"{unanswered} of {counted(queries, 'judged queries')} without a text or a ranking, "
            "counted as 0: the judgements and the queries may be of different versions."
        )
    if unanswerable:
        found.append(
            f"{unanswerable} of {counted(queries, 'queries')} without a relevant document among "
            f"the judgements, counted as 0, as in trec_eval; no model can reach 1."
        )
    if unknown_documents:
        found.append(
            "The corpus does not hold the documents of "
            f"{counted(unknown_documents, 'judgements')}, "
            f"which count as never found, as in trec_eval; published sets have a few, and many "
            f"mean that the corpus is a sample or of another version."
        )
    return found


def ranking_checks(tied: Mapping[Cut, int], empty: Mapping[Cut, int], queries: int) -> list[str]:
    """Return a sentence each for rankings of one score and for empty rankings.

    Args:
        tied: cut -> number of queries whose documents all have the same score.
        empty: cut -> number of queries that found nothing.
        queries: number of queries that were ranked.
    """
    one_score = "give one score to all documents of a ranking"
    by_id = "they are ordered by id alone; vectors of zeros have this effect"
    unknown = "the corpus may be empty, or layer 0 knows none of their words"
    found = []
    for cuts, what, why in ((tied, one_score, by_id), (empty, "find no document", unknown)):
        some = [cut for cut in sorted(cuts) if cuts[cut]]
        if some:
            worst = max(some, key=lambda cut: cuts[cut])
            found.append(
                f"{cuts[worst]} of {queries} queries {what} at {worst}"
                f"{' and others' * (len(some) > 1)}: {why}."
            )
    return found


def model_checks(
    card: ModelCard,
    values: Mapping[Cut, float],
    measure: str,
    differences: Mapping[str, tuple[object, object]],
) -> list[str]:
    """Return a sentence for each way in which a model is used unlike it was trained.

    Args:
        card: of the model.
        values: of the cuts that were measured.
        measure: that they are values of.
        differences: field -> (its value in the documents' label, its value in the card).
    """
    found = [
        f"The documents were encoded with {name} {theirs!r} and the model's m2dr.json says "
        f"{mine!r}: scores are not those of the trained model."
        for name, (theirs, mine) in differences.items()
    ]
    trained = card.cuts if card.fit is None else (card.full,)  # a fit is no training
    untrained = (cut for cut in sorted(values) if Cut(cut.layer, cut.dim) not in trained)
    poor = [str(cut) for cut in untrained if values[cut] < max(values.values()) * NEAR_RANDOM]
    if poor:
        found.append(
            f"{', '.join(poor)}: not trained, and below a tenth of the best {measure}, "
            "which is near random."
        )
    return found
