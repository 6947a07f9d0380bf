"""What a recipe asks, as a table."""

from collections import Counter

from m2dr.errors import counted
from m2dr.train.terms import Term
from m2dr.verbs.training.recipe import Recipe


def explain(recipe: Recipe) -> str:
    """The table of terms and weights of one step, and what is trained beside them."""
    counts: Counter[Term] = Counter()
    for asked in recipe.choices:
        counts.update(asked.terms)
    draws = len(recipe.choices)
    rows = [("cut", "asked", "weight", "imitates", "steps")]
    for term, count in sorted(counts.items(), key=lambda item: -item[1] if draws > 1 else 0):
        own = {"retrieve": recipe.setting.loss, "distill": recipe.setting.distill}
        kind = own.get(term.kind, term.kind)
        teacher = str(term.teacher) if term.teacher else _target(recipe, term)
        share = "" if draws == 1 else "all" if count == draws else f"1 in {draws / count:g}"
        rows.append((str(term.cut), kind, f"{term.weight:.4f}", teacher, share))
    used = [place for place, cells in enumerate(zip(*rows[1:], strict=True)) if any(cells)]
    table = [[row[place] for place in used] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in table]
    tail = counted(len(counts), "terms")
    tail += f", {draws} draws of a step" if draws > 1 else ""
    return "\n".join([*_head(recipe), *(line.rstrip() for line in lines), *_beside(recipe), tail])


def _head(recipe: Recipe) -> list[str]:
    source = "the last layer" if recipe.variant.documents == "last" else "the query's layer"
    return [
        f"{recipe.variant.name}: {recipe.variant.summary}",
        f"Whole encoder {recipe.whole}, documents from {source}, "
        f"similarity {recipe.card.similarity}, temperature {recipe.card.temperature:g}.",
    ]


def _target(recipe: Recipe, term: Term) -> str:
    if term.kind == "distill":
        return "teacher's scores"
    if not term.kind.startswith("align"):
        return ""
    names = {"dependencies": "PCA of dependencies", "embeddings": "PCA", "max-k": "max-k"}
    return names.get(recipe.variant.compress, "")


def _beside(recipe: Recipe) -> list[str]:
    """Terms that have no cut of their own, and what is trained but not kept."""
    variant, rest = recipe.variant, 1 - recipe.variant.alpha
    layers = ", ".join(str(cut.layer) for cut in recipe.path)
    found = []
    if variant.sia:
        dims = ", ".join(map(str, recipe.related))
        found.append(f"token relations of layers {layers} at dims {dims}, weight {rest:.4f}")
    if variant.pic:
        path = " -> ".join(map(str, recipe.path))
        found.append(f"chain {path}, weight {rest:.4f}")
    if variant.weights == "dynamic":
        found.append("weights of the shallow layers are learned")
    if variant.freeze:
        found.append("the encoder is frozen")
    if recipe.card.exit_head == "linear":
        below = [str(layer) for layer in recipe.layers if layer < recipe.whole.layer]
        found.append(f"exit heads at layers {', '.join(below)}")
    return found
