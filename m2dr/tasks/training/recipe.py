"""Settings and a backbone resolved to the recipe of a training, checked before it starts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast, get_args

from m2dr.core.errors import UserError, counted
from m2dr.core.records import Cut, ModelCard, default_dims, pooling_modes
from m2dr.core.settings import TrainSettings
from m2dr.core.variants import CHOICES, VARIANTS, ExitHead, Loss, Variant
from m2dr.evaluation.grid import aligned
from m2dr.model.backbones import attend, default_pooling
from m2dr.model.checkpoint import Model
from m2dr.model.folder import TEMPERATURE
from m2dr.model.hub import revision_of
from m2dr.tasks.training.run_folder import open_backbone
from m2dr.training.mipic import Anchor, Chain, TokenRelations, checkpoints_of, full_width, shares_of
from m2dr.training.objective import LossWeights, Objective, Setting
from m2dr.training.terms import StepTerms, Term, possible_steps, weighed, with_teacher

Kind = Literal["documents", "scored pairs", "sentences"]  # what a corpus holds

USUAL_PREFIX = 128  # the retrieval paper's k
STAIRS = 6  # cuts of the diagonal, the full model included (Starbucks)
SHORTEST_RELATED = 16  # no shorter prefix has token relations (MIPIC, A.5)
USUAL_LOSS: dict[Kind, Loss] = {
    "documents": "contrastive",
    "scored pairs": "angle",
    "sentences": "simcse",
}
PAIRED = ("cosent", "angle")  # losses of pairs that are more or less alike
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(TrainSettings)}


@dataclass(frozen=True)
class Recipe:
    """A variant resolved for a backbone."""

    variant: Variant
    card: ModelCard  # of the model to be: no fingerprint yet
    full: Cut  # the cut of the full model
    choices: tuple[StepTerms, ...]  # terms of the possible steps, all equally likely
    setting: Setting
    related: tuple[int, ...]  # prefixes whose token relations are trained
    related_layers: tuple[int, ...]  # of these token relations
    path: tuple[Cut, ...]  # checkpoints of the chain, small to full

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that some step trains, increasing."""
        return tuple(sorted({layer for step in self.choices for layer in step.layers}))

    def objective(self) -> Objective:
        """Build the objective; its new parameters are the same for the same recipe."""
        variant, full = self.variant, self.full
        relations = chain = None
        if variant.sia:
            relations = TokenRelations(
                self.related_layers,
                self.related,
                full.dim,
                self.setting.relations_temperature,
                shares_of(len(self.related)),
                cast(Anchor, self.card.pooling),
                self.setting.relations_self,
                variant.relations == "code",
            )
        if variant.pic:
            chain = Chain(self.path, self.setting.chain_temperature, variant.chain == "code")
        return Objective(self.choices, full, self.setting, relations, chain, 1 - variant.alpha)


def recipe_of(
    settings: TrainSettings, kind: Kind = "documents", opened: Model | None = None
) -> Recipe:
    """Resolve every number that settings leave to the variant, the backbone or the corpus.

    Args:
        settings: of the training.
        kind: of its data.
        opened: the backbone, where it is opened already.

    Raises:
        UserError: layers, dims or losses that the backbone does not have, the variant does not use
            or the corpus does not serve.
    """
    variant, opened = settings.recipe(), opened or open_backbone(settings)
    backbone = opened.card
    loss = settings.loss or USUAL_LOSS[kind]
    for problem in _problems(settings, variant, opened, kind, loss):
        raise UserError(problem)
    layers = () if variant.staircase else tuple(sorted(set(settings.layers)))
    if not (variant.shallow or variant.single_cut):
        layers = ()
    last = layers[0] if variant.single_cut and layers else backbone.layers
    full = Cut(last, backbone.width)
    dims = _dims(settings, variant, full)
    stairs, path = _cuts(settings, variant, full)
    odd = [dim for dim in (*dims, *(cut.dim for cut in stairs), full.dim) if dim % 2]
    if odd and loss == "angle" and settings.loss_weights[2]:
        raise UserError(f"loss = angle halves each prefix, so dims = {odd} must be even.")
    related = tuple(dim for dim in dims if dim >= SHORTEST_RELATED) if variant.sia else ()
    if variant.sia and not related:
        raise UserError(f"Token relations need prefixes of {SHORTEST_RELATED} and more; set dims.")
    first = 0 if variant.embeddings else 1
    usual = [*range(first, first + last - 1 if variant.draw != "exit" else last)]
    if variant.layer_choice == "sparse":
        usual = [layer for layer in usual if layer in (1, 2, 4) or layer % 8 == 0]
    named = layers or usual
    at = tuple(sorted(set(settings.relations_layers))) or tuple(cut.layer for cut in path)
    shallow = tuple(layer for layer in named if layer < last)
    pairs, needed = kind != "documents", [cut.layer for cut in path]
    choices = possible_steps(variant, shallow, dims, full, stairs, pairs, needed)
    choices = weighed(choices, settings.term_weights, full)
    if settings.distill != "none":
        choices = with_teacher(choices, settings.contrastive_weight, settings.distill_weight)
    similarity = settings.similarity or ("cosine" if pairs else backbone.similarity)
    setting = Setting(
        similarity=similarity,
        temperature=settings.temperature or TEMPERATURE[similarity],
        loss=loss,
        loss_weights=cast(LossWeights, settings.loss_weights),
        candidates=settings.candidates or ("all" if settings.faithful else "second"),
        variant=variant,
        unit_output=variant.align_output and opened.files.normalizes,
        learned=shallow if variant.weights == "dynamic" else (),
        relations_temperature=settings.relations_temperature,
        relations_self=settings.relations_self,
        chain_temperature=settings.chain_temperature,
        seed=settings.seed,
        distill=settings.distill,
        distill_temperature=settings.distill_temperature,
    )
    card = _card(settings, variant, opened, full, choices, setting)
    return Recipe(variant, card, full, choices, setting, related, at, path)


def _card(
    settings: TrainSettings,
    variant: Variant,
    opened: Model,
    full: Cut,
    choices: Sequence[StepTerms],
    setting: Setting,
) -> ModelCard:
    """Return the card of the model to be trained."""
    files, backbone = opened.files, opened.card
    pooling = backbone.pooling
    if settings.attention:
        pooling = default_pooling(attend(files.config(), settings.attention))
    # Fitted exits no longer fit when the layers below them have moved.
    heads: ExitHead = "linear" if backbone.exit_head == "linear" else "none"
    if any(step.layers[0] < full.layer for step in choices):
        heads = variant.exit_head
    given = {name: getattr(settings, name) for name in ("query_prefix", "document_prefix")}
    prompts = {name: prompt for name, prompt in given.items() if prompt is not None}
    return replace(
        backbone,
        backbone=settings.backbone,
        exits=settings.exits,
        revision=revision_of(files.path),
        variant=variant.name,
        layers=full.layer,
        cuts=tuple(sorted({c for step in choices for c in step.cuts if c.layer > 0})),
        documents=variant.documents,
        pooling=settings.pooling or pooling,
        similarity=setting.similarity,
        temperature=setting.temperature,
        query_length=settings.query_length or backbone.query_length,
        document_length=settings.document_length or backbone.document_length,
        exit_head=heads,
        fit=None,
        attention=settings.attention or backbone.attention,
        exported_from="",
        kept="",
        fingerprint="",
        **prompts,
    )


def _problems(  # noqa: C901  # a list
    settings: TrainSettings, variant: Variant, opened: Model, kind: Kind, loss: Loss
) -> Iterator[str]:
    """Say what the backbone, the corpus or the rest of the recipe does not allow."""
    name, backbone, longest = variant.name, opened.card, opened.files.sizes.tokens
    for length in ("query_length", "document_length"):
        asked = getattr(settings, length) or 1
        if asked > longest:
            yield f"{length} = {asked} was asked for; {backbone.backbone} reads {longest} tokens."
    if (settings.attention or settings.pooling) and len(pooling_modes(backbone.pooling)) > 1:
        yield f"{settings.backbone} has several poolings, so pooling and attention are fixed."
    if variant.sia:
        module, pooling = opened.files.reshaping_module, settings.pooling or backbone.pooling
        if module or pooling not in get_args(Anchor):
            found = f"the module {module} behind it" if module else f"the pooling {pooling}"
            yield f"sia compares vectors with states of tokens; the backbone has {found}."
    if variant.freeze:
        if variant.exit_head == "none" or variant.single_cut or not variant.shallow:
            yield f"freeze = true trains exits of shallow layers, and {name}, as set, has none."
        if settings.lora_rank or settings.dropout:
            yield "freeze = true keeps the encoder as it is; leave lora_rank and dropout out."
    if variant.draw == "exit" and variant.staircase:
        yield "draw = exit draws a dim per layer, and a staircase has one; set draw=step."
    if kind == "documents" and (loss == "simcse" or (loss in PAIRED and not settings.negatives)):
        yield f"loss = {loss} needs pairs, not documents (cosent and angle: or negatives)."
    if kind == "sentences" and loss in PAIRED:
        yield f"loss = {loss} needs pairs with scores, and {settings.corpus} has single sentences."
    for layer in settings.relations_layers:
        backbone.check(Cut(layer, 1))
    if variant.shallow or variant.single_cut:
        for layer in set(settings.layers) - {0}:
            backbone.check(Cut(layer, 1))
        if 0 in settings.layers and variant.single_cut:
            yield "An encoder that is cut to layer 0 has no layer to train."
        if (0 in settings.layers or variant.embeddings) and variant.exit_head == "fitted":
            yield "With exit_head = fitted, layer 0 is a fixed table and is not trained."


def _dims(settings: TrainSettings, variant: Variant, full: Cut) -> tuple[int, ...]:
    """Return the prefixes to train; those of the variant where none is named."""
    dims = tuple(sorted(set(settings.dims)))
    if dims and dims[-1] > full.dim:
        raise UserError(f"Dim {dims[-1]} was asked for; this backbone has {full.dim} dims.")
    if variant.prefixes == "none":
        return ()
    if len(dims) > 1 and variant.prefixes == "one":
        raise UserError(f"{variant.name} trains one prefix, not {list(dims)}; set prefixes=many.")
    if variant.single_cut:
        return dims
    below = tuple(dim for dim in dims if dim < full.dim)
    if below:
        return below
    usual = [dim for dim in default_dims(full.dim) if dim < full.dim]
    if variant.prefixes == "many":
        return tuple(dim for dim in usual if dim >= SHORTEST_RELATED or not variant.sia)
    return (max(dim for dim in usual if dim <= USUAL_PREFIX),)


def _cuts(
    settings: TrainSettings, variant: Variant, full: Cut
) -> tuple[tuple[Cut, ...], tuple[Cut, ...]]:
    """Return the cuts of the diagonal below the full model, and the checkpoints of a chain."""
    named = tuple(Cut.parse(word) for word in settings.checkpoints)
    for cut in named:
        if cut.layer > full.layer or cut.dim > full.dim:
            raise UserError(f"Checkpoint {cut} was asked for; the full model is {full}.")
    below = tuple(cut for cut in named if cut != full)
    path: tuple[Cut, ...] = ()
    if variant.sia or variant.pic:
        path = (*below, full) if named else checkpoints_of(full.layer, full.dim)
        if named and variant.chain == "code":
            path = named  # which may end below the last layer
        path = full_width(path) if variant.full_checkpoints else path
    return (below or stairs_of(full)) if variant.staircase else (), path


def stairs_of(full: Cut) -> tuple[Cut, ...]:
    """Return Starbucks' cuts below the full model, scaled from (2, 32) … (10, 512) of (12, 768)."""
    below = [dim for dim in default_dims(full.dim) if dim < full.dim]
    dims = below[max(0, len(below) - min(STAIRS, full.layer) + 1) :]
    layers = [full.layer * place // (len(dims) + 1) for place in range(1, len(dims) + 1)]
    return tuple(Cut(layer, dim) for layer, dim in zip(layers, dims, strict=True))


def explain(settings: TrainSettings, kind: Kind = "documents") -> str:
    """Return the terms of one batch, what else is trained, and which settings have no effect."""
    recipe = recipe_of(settings, kind)
    variant, setting, card = recipe.variant, recipe.setting, recipe.card
    source = "the last layer" if variant.documents == "last" else "the query's layer"
    lines = [
        f"{variant.name}: {variant.summary}",
        f"Full model {recipe.full}, documents from {source}, similarity {card.similarity}, "
        f"temperature {card.temperature:g}.",
    ]
    row = VARIANTS[variant.name]
    changed = {name: getattr(variant, name) for name in CHOICES}
    words = [f"{name}={value}" for name, value in changed.items() if value != getattr(row, name)]
    if words:
        lines.insert(1, f"Changed: {' '.join(words)}")
    counts: Counter[Term] = Counter()
    for step in recipe.choices:
        counts.update(step.terms)
    draws = len(recipe.choices)
    names = {"retrieve": setting.loss, "distill": setting.distill}
    rows = [("cut", "loss", "weight", "imitates", "batches")]
    for term, count in sorted(counts.items(), key=lambda item: -item[1] if draws > 1 else 0):
        imitated = str(term.teacher or "")
        if term.kind == "distill":
            imitated = "teacher's scores"
        elif term.kind.startswith("align") and not term.teacher:
            imitated = f"PCA of {variant.compress}"
        share = "" if draws == 1 else "all" if count == draws else f"1 in {draws / count:g}"
        what = names.get(term.kind, term.kind)
        rows.append((str(term.cut), what, f"{term.weight:.4f}", imitated, share))
    columns = [cells for cells in zip(*rows, strict=True) if any(cells[1:])]
    lines += aligned(list(zip(*columns, strict=True)), left=range(len(columns)))
    sia, pic = ((1 - variant.alpha) * each for each in (variant.sia_weight, variant.pic_weight))
    below = [str(layer) for layer in recipe.layers if layer < recipe.full.layer]
    related = ", ".join(map(str, recipe.related))
    above = ", ".join(map(str, recipe.related_layers))
    extra_terms = {
        f"token relations of layers {above} at dims {related}, weight {sia:.4f}": variant.sia,
        f"chain {' -> '.join(map(str, recipe.path))}, weight {pic:.4f}": variant.pic,
        "weights of the shallow layers are learned": variant.weights == "dynamic",
        "the encoder is frozen": variant.freeze,
        f"exit heads at layers {', '.join(below)}": card.exit_head == "linear",
    }
    lines += [line for line, there in extra_terms.items() if there]
    lines.append(counted(len(counts), "terms") + (f", {draws} draws of a batch" * (draws > 1)))
    lines += filter(None, [no_effect(settings, recipe)])
    return "\n".join(lines)


def no_effect(settings: TrainSettings, recipe: Recipe) -> str:
    """Name the given settings of parts that a recipe does not have; empty where there is none.

    A setting with the value of its default, or of the variant's row, was not given.
    """
    variant, setting = recipe.variant, recipe.setting
    shallow = variant.shallow or variant.staircase
    of_parts = [
        ("layers", variant.single_cut or variant.shallow and not variant.staircase),
        ("dims prefix_weights", variant.prefixes != "none"),
        ("own_softmax", settings.negatives > 0),
        ("checkpoints", variant.staircase or variant.sia or variant.pic),
        ("documents", shallow or variant.pic),
        ("weights exit_head full_dim embeddings layer_choice", shallow),
        ("teacher", variant.align == "score"),
        ("add_mse align_reduction align_weight align_by_layer", variant.align != "none"),
        ("compress", variant.align == "pca"),
        ("detach align_width", variant.align == "embedding"),
        ("align_temperature align_output joint_batch", variant.align in ("pca", "embedding")),
        ("relations relations_temperature relations_self relations_layers sia_weight", variant.sia),
        ("chain chain_temperature full_checkpoints pic_weight", variant.pic),
        ("loss_weights candidates", setting.loss == "angle"),
        ("distill_weight contrastive_weight distill_temperature", setting.distill != "none"),
    ]
    idle = [
        name
        for names, used in of_parts
        for name in names.split()
        if not used
        and getattr(settings, name)
        not in (_DEFAULTS[name], getattr(settings.row, name, _DEFAULTS[name]))
    ]
    return f"No effect on this recipe: {', '.join(idle)}." if idle else ""
