"""Settings and a backbone resolved to the recipe of a training, checked before it starts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast, get_args

from m2dr.core.errors import UserError, counted
from m2dr.core.records import Cut, ModelCard, Similarity, pooling_modes
from m2dr.core.settings import TrainSettings
from m2dr.core.variants import CHOICES, VARIANTS, ExitHead, Loss, Variant
from m2dr.model.backbones import attend, default_pooling, most_tokens, read_config
from m2dr.model.checkpoint import read_card
from m2dr.model.hub import find_folder, revision_of
from m2dr.model.st_folder import TEMPERATURE, reshaping_module
from m2dr.tasks.encoder import at_revision, default_dims
from m2dr.tasks.run_folder import refuse_backbone
from m2dr.train.mipic import Anchor, Chain, TokenRelations, checkpoints_of, full_width, shares_of
from m2dr.train.objective import LossWeights, Objective, Setting
from m2dr.train.terms import StepTerms, Term, possible_steps, with_teacher

Kind = Literal["documents", "scored pairs", "sentences"]  # what a corpus holds

USUAL_PREFIX = 128  # the retrieval paper's k
STAIRS = 6  # cuts of the diagonal, the full model included (Starbucks)
SHORTEST_RELATED = 16  # no shorter prefix has token relations (MIPIC, A.5)
PAIRED = ("cosent", "angle")  # losses of pairs that are more or less alike
RECIPE_SETTINGS = (
    *CHOICES, "faithful", "loss_weights", "candidates",
    "relations_temperature", "chain_temperature", "distill", "distill_weight", "contrastive_weight",
    "distill_temperature",
)  # fmt: skip
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
    path: tuple[Cut, ...]  # checkpoints of the chain, small to full
    scored: bool = False  # whether pairs have labels

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that some step trains, increasing."""
        return tuple(sorted({layer for step in self.choices for layer in step.layers}))

    def objective(self) -> Objective:
        """Build the objective; its new parameters are the same for the same recipe."""
        variant, full = self.variant, self.full
        relations = chain = None
        if variant.sia:
            layers, shares = [cut.layer for cut in self.path], shares_of(len(self.related))
            relations = TokenRelations(
                layers,
                self.related,
                full.dim,
                self.setting.relations_temperature,
                shares,
                cast(Anchor, self.card.pooling),
            )
        if variant.pic:
            chain = Chain(self.path, self.setting.chain_temperature)
        return Objective(self.choices, full, self.setting, relations, chain, 1 - variant.alpha)


@at_revision
def recipe_of(settings: TrainSettings, kind: Kind = "documents") -> Recipe:
    """Resolve every number that settings leave to the variant, the backbone or the corpus.

    Raises:
        UserError: layers, dims or losses that the backbone does not have, the variant does not use
            or the corpus does not serve.
    """
    variant, backbone = settings.recipe(), read_card(settings.backbone)
    _refuse(settings, variant, backbone)
    layers = _layers(settings, variant, backbone)
    last = layers[0] if variant.single_cut and layers else backbone.layers
    full = Cut(last, backbone.width)
    dims = _dims(settings, variant, full)
    stairs, path = _cuts(settings, variant, full)
    if _loss(settings, kind) == "angle" and settings.loss_weights[2]:
        _refuse_odd([*dims, *(cut.dim for cut in stairs), full.dim])
    named = layers or (range(last - 1) if variant.embeddings else range(1, last))
    shallow = tuple(layer for layer in named if layer < last)
    choices = possible_steps(
        variant,
        shallow,
        dims,
        full,
        stairs,
        joint_batch=kind != "documents",
        more_layers=[cut.layer for cut in path],
    )
    if settings.distill != "none":
        choices = with_teacher(choices, settings.contrastive_weight, settings.distill_weight)
    related = [d for d in dims if d >= SHORTEST_RELATED] if variant.sia else []
    if variant.sia and not related:
        raise UserError(f"Token relations need prefixes of {SHORTEST_RELATED} and more; set dims.")
    setting = _setting(settings, variant, backbone, kind, shallow)
    card = _card(settings, variant, backbone, full, choices, setting)
    scored = kind == "scored pairs"
    return Recipe(variant, card, full, choices, setting, tuple(related), path, scored)


def _setting(
    settings: TrainSettings,
    variant: Variant,
    backbone: ModelCard,
    kind: Kind,
    shallow: tuple[int, ...],
) -> Setting:
    """Return how the terms are computed."""
    similarity = settings.similarity or _similarity(backbone, kind)
    return Setting(
        similarity=similarity,
        temperature=settings.temperature or TEMPERATURE[similarity],
        loss=_loss(settings, kind),
        loss_weights=cast(LossWeights, settings.loss_weights),
        candidates=settings.candidates or ("all" if settings.faithful else "second"),
        variant=variant,
        learned=shallow if variant.weights == "dynamic" else (),
        relations_temperature=settings.relations_temperature,
        chain_temperature=settings.chain_temperature,
        seed=settings.seed,
        distill=settings.distill,
        distill_temperature=settings.distill_temperature,
    )


def _card(
    settings: TrainSettings,
    variant: Variant,
    backbone: ModelCard,
    full: Cut,
    choices: Sequence[StepTerms],
    setting: Setting,
) -> ModelCard:
    """Return the card of the model to be trained."""
    folder = find_folder(settings.backbone)
    config = attend(read_config(folder), settings.attention)
    pooling = default_pooling(config) if settings.attention else backbone.pooling
    below = any(step.layers[0] < full.layer for step in choices)
    return replace(
        backbone,
        backbone=settings.backbone,
        revision=revision_of(folder),
        variant=variant.name,
        layers=full.layer,
        cuts=tuple(sorted({c for step in choices for c in step.cuts if c.layer > 0})),
        documents=variant.documents,
        pooling=settings.pooling or pooling,
        similarity=setting.similarity,
        temperature=setting.temperature,
        query_prefix=_or(settings.query_prefix, backbone.query_prefix),
        document_prefix=_or(settings.document_prefix, backbone.document_prefix),
        query_length=settings.query_length,
        document_length=settings.document_length,
        exit_head=variant.exit_head if below else _kept(backbone),
        fit=None,
        attention=settings.attention or backbone.attention,
        exported_from="",
        fingerprint="",
    )


def _kept(backbone: ModelCard) -> ExitHead:
    """Return the exit heads that a training of the last layer alone does not change.

    Fitted ones no longer fit when the layers below them have moved.
    """
    return "linear" if backbone.exit_head == "linear" else "none"


def _loss(settings: TrainSettings, kind: Kind) -> Loss:
    """Return the base loss: the one asked for, or the default of the kind of corpus."""
    usual: dict[Kind, Loss] = {
        "documents": "contrastive",
        "scored pairs": "angle",
        "sentences": "simcse",
    }
    loss = settings.loss or usual[kind]
    if kind == "documents" and (loss == "simcse" or (loss in PAIRED and not settings.negatives)):
        mend = "" if loss == "simcse" else ", set negatives=1 or more to make pairs of each query"
        raise UserError(
            f"loss = {loss} trains on sentences, and {settings.corpus} holds queries and documents."
            f" Leave loss out{mend}, or name a file of sentence pairs."
        )
    if kind == "sentences" and loss in PAIRED:
        raise UserError(
            f"loss = {loss} needs pairs with scores, and {settings.corpus} holds single sentences. "
            "Set loss=simcse, or name a file of scored pairs."
        )
    return loss


def _similarity(backbone: ModelCard, kind: Kind) -> Similarity:
    """Return the similarity: cosine for sentence pairs, else the backbone's."""
    return backbone.similarity if kind == "documents" else "cosine"


def _refuse(settings: TrainSettings, variant: Variant, backbone: ModelCard) -> None:
    """Raise UserError for what the backbone or the rest of the recipe does not allow."""
    refuse_backbone(settings.backbone)
    _refuse_long(settings, backbone)
    _refuse_space(settings, variant, backbone)
    _refuse_frozen(settings, variant)
    if variant.draw == "exit" and variant.staircase:
        raise UserError(
            "draw = exit was asked for, and a staircase has one dim per layer. Set draw=step."
        )


def _refuse_frozen(settings: TrainSettings, variant: Variant) -> None:
    """Raise UserError for a frozen encoder with nothing else to train, or that must change."""
    if not variant.freeze:
        return
    if variant.exit_head == "none" or variant.single_cut or not variant.shallow:
        raise UserError(
            f"freeze = true trains the exits of shallow layers alone, and variant {variant.name}, "
            "as it is set, has none. Take --variant exits, or set exit_head=fitted, shallow=true."
        )
    for name in ("lora_rank", "dropout"):
        if getattr(settings, name):
            raise UserError(
                f"{name} = {getattr(settings, name)} changes an encoder in training, and freeze = "
                f"true keeps it as it is. Leave {name} out."
            )


def _refuse_odd(dims: Sequence[int]) -> None:
    odd = [dim for dim in dims if dim % 2]
    if odd:
        raise UserError(
            f"loss = angle reads a prefix as complex numbers, half of it real, so dims = {odd} "
            "must be even."
        )


def _refuse_long(settings: TrainSettings, backbone: ModelCard) -> None:
    longest = most_tokens(read_config(find_folder(settings.backbone)))
    for name in ("query_length", "document_length"):
        if getattr(settings, name) > longest:
            raise UserError(
                f"{name} = {getattr(settings, name)} was asked for; {backbone.backbone} reads "
                f"{longest} tokens at most."
            )


def _refuse_space(settings: TrainSettings, variant: Variant, backbone: ModelCard) -> None:
    """Raise UserError for what the backbone's pooling and the modules behind it do not allow."""
    name = "attention" if settings.attention else "pooling"
    asked = getattr(settings, name)
    if asked and len(pooling_modes(backbone.pooling)) > 1:
        raise UserError(
            f"{name} = {asked} was asked for; {settings.backbone} joins the vectors of several "
            f"poolings ({backbone.pooling}), and its width is theirs. Leave {name} out."
        )
    if not variant.sia:
        return
    module = reshaping_module(find_folder(settings.backbone))
    pooling = settings.pooling or backbone.pooling
    if module or pooling not in get_args(Anchor):
        found = f"the module {module} behind its pooling" if module else f"the pooling {pooling}"
        raise UserError(
            f"Variant {variant.name} compares a text's vector with those of its tokens (sia), and "
            f"{settings.backbone} has {found}. Set sia=false, or take another backbone."
        )


def _layers(settings: TrainSettings, variant: Variant, backbone: ModelCard) -> tuple[int, ...]:
    if variant.staircase or not (variant.shallow or variant.single_cut):
        return ()  # which --explain says
    layers = tuple(sorted(set(settings.layers)))
    for layer in layers:
        if layer > 0:
            backbone.check(Cut(layer, 1))
    if 0 in layers and variant.single_cut:
        raise UserError(
            "layers = 0 was asked of variant separate; an encoder that is cut to no layer has none "
            "to train."
        )
    if (0 in layers or variant.embeddings) and variant.exit_head == "fitted":
        raise UserError(
            "Layer 0 was asked for with exit_head = fitted, where it is a table that no step "
            "reaches. Leave embeddings and layer 0 out, or set exit_head=none."
        )
    return layers


def _dims(settings: TrainSettings, variant: Variant, full: Cut) -> tuple[int, ...]:
    dims = tuple(sorted(set(settings.dims)))
    if dims and dims[-1] > full.dim:
        raise UserError(f"Dim {dims[-1]} was asked for; this backbone has {full.dim} dims.")
    if variant.prefixes == "none":
        return ()
    if len(dims) > 1 and variant.prefixes == "one":
        raise UserError(
            f"Variant {variant.name} trains one prefix; dims = {list(dims)} names {len(dims)}. "
            "Set prefixes=many for several."
        )
    if variant.single_cut:
        return dims
    return tuple(dim for dim in dims if dim < full.dim) or _usual(variant, full.dim)


def _usual(variant: Variant, width: int) -> tuple[int, ...]:
    """Return the prefixes of a recipe whose settings name none."""
    below = [dim for dim in default_dims(width) if dim < width]
    if variant.prefixes == "none":
        return ()
    if not below:
        raise UserError(f"A width of {width} has no usual prefix; name one with dims=[…].")
    if variant.prefixes == "many":
        return tuple(dim for dim in below if dim >= SHORTEST_RELATED or not variant.sia)
    return (max(dim for dim in below if dim <= USUAL_PREFIX),)


def _cuts(
    settings: TrainSettings, variant: Variant, full: Cut
) -> tuple[tuple[Cut, ...], tuple[Cut, ...]]:
    """Return the cuts of the diagonal below the full model, and the checkpoints of a chain."""
    named = tuple(Cut.parse(word) for word in settings.checkpoints)
    chained = variant.sia or variant.pic
    for cut in named:
        if cut.layer > full.layer or cut.dim > full.dim:
            raise UserError(f"Checkpoint {cut} was asked for; the full model is {full}.")
    path: tuple[Cut, ...] = ()
    if chained:
        below = tuple(cut for cut in named if cut != full)
        path = (*below, full) if named else checkpoints_of(full.layer, full.dim)
        path = full_width(path) if variant.full_checkpoints else path
    stairs: tuple[Cut, ...] = ()
    if variant.staircase:
        stairs = tuple(cut for cut in named if cut != full) or stairs_of(full)
    return stairs, path


def stairs_of(full: Cut) -> tuple[Cut, ...]:
    """Return Starbucks' cuts below the full model, scaled from (2, 32) … (10, 512) of (12, 768)."""
    below = [dim for dim in default_dims(full.dim) if dim < full.dim]
    dims = below[max(0, len(below) - min(STAIRS, full.layer) + 1) :]
    layers = [full.layer * place // (len(dims) + 1) for place in range(1, len(dims) + 1)]
    return tuple(Cut(layer, dim) for layer, dim in zip(layers, dims, strict=True))


def _or(value: str | None, other: str) -> str:
    return other if value is None else value


def explain(settings: TrainSettings, kind: Kind = "documents") -> str:
    """Return the terms of one batch, what else is trained, and which settings no term reads."""
    recipe = recipe_of(settings, kind)
    counts: Counter[Term] = Counter()
    for step in recipe.choices:
        counts.update(step.terms)
    draws = len(recipe.choices)
    rows = [("cut", "loss", "weight", "imitates", "batches")]
    for term, count in sorted(counts.items(), key=lambda item: -item[1] if draws > 1 else 0):
        own = {"retrieve": recipe.setting.loss, "distill": recipe.setting.distill}
        what = own.get(term.kind, term.kind)
        teacher = str(term.teacher) if term.teacher else _target(recipe, term)
        share = "" if draws == 1 else "all" if count == draws else f"1 in {draws / count:g}"
        rows.append((str(term.cut), what, f"{term.weight:.4f}", teacher, share))
    used = [place for place, cells in enumerate(zip(*rows[1:], strict=True)) if any(cells)]
    table = [[row[place] for place in used] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in table]
    tail = counted(len(counts), "terms")
    tail += f", {draws} draws of a batch" if draws > 1 else ""
    idle = unread(settings, kind)
    notes = [f"Given, and read by no term: {', '.join(idle)}."] if idle else []
    return "\n".join([*_head(recipe), *lines, *_extra_terms(recipe), tail, *notes])


def _head(recipe: Recipe) -> list[str]:
    source = "the last layer" if recipe.variant.documents == "last" else "the query's layer"
    row = VARIANTS[recipe.variant.name]
    changed = [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name in CHOICES
        if (value := getattr(recipe.variant, name)) != getattr(row, name)
    ]
    return [
        f"{recipe.variant.name}: {recipe.variant.summary}",
        *([f"Changed: {' '.join(changed)}"] if changed else []),
        f"Full model {recipe.full}, documents from {source}, "
        f"similarity {recipe.card.similarity}, temperature {recipe.card.temperature:g}.",
    ]


def _target(recipe: Recipe, term: Term) -> str:
    if term.kind == "distill":
        return "teacher's scores"
    if not term.kind.startswith("align"):
        return ""
    names = {
        "dependencies": "PCA of dependencies",
        "randomised": "PCA of dependencies, randomised",
        "embeddings": "PCA",
        "max-k": "max-k",
    }
    return names.get(recipe.variant.compress, "")


def _extra_terms(recipe: Recipe) -> list[str]:
    """Return the terms without a cut of their own, and what is trained but not kept."""
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
    if 0 in recipe.layers and recipe.card.pooling == "cls":
        found.append(
            "layer 0 of the first token is the same for all texts: nothing is learned from it"
        )
    if variant.freeze:
        found.append("the encoder is frozen")
    if recipe.card.exit_head == "linear":
        below = [str(layer) for layer in recipe.layers if layer < recipe.full.layer]
        found.append(f"exit heads at layers {', '.join(below)}")
    return found


def unread(settings: TrainSettings, kind: Kind = "documents") -> list[str]:
    """Return the settings of the recipe that were given and that none of its terms reads."""
    recipe = recipe_of(settings, kind)
    variant, read = recipe.variant, _read(recipe)
    shallow = any(term.cut.layer < recipe.full.layer for s in recipe.choices for term in s.terms)
    uses = {
        "layers": variant.single_cut or shallow and not variant.staircase,
        "dims": variant.prefixes != "none",
        "checkpoints": variant.staircase or variant.sia or variant.pic,
    }
    found = [name for name, used in uses.items() if getattr(settings, name) and not used]
    for name in RECIPE_SETTINGS:
        default = _DEFAULTS[name]
        if getattr(settings, name) in (default, getattr(settings.row, name, default)):
            continue
        try:
            without = _read(recipe_of(replace(settings, **{name: default}), kind))
        except UserError:  # without it nothing can be trained, or another setting would not fit
            continue
        if without == read:
            found.append(name)
    return found


def _read(recipe: Recipe) -> tuple[object, ...]:
    """Return all that settings of a recipe can change in a training or its model."""
    setting, variant = recipe.setting, recipe.variant
    terms = [term for step in recipe.choices for term in step.terms]
    kinds = {term.kind for term in terms} - {"retrieve"}
    layers = {term.cut.layer for term in terms}
    aligned = kinds - {"distill"}
    vectors = {kind.split()[0] for kind in aligned - {"align scores"}}
    extra = 1 - variant.alpha  # what token relations and the chain count
    sia, pic = variant.sia and extra > 0, variant.pic and extra > 0
    return (
        tuple(step.terms for step in recipe.choices),
        (min(layers) < recipe.full.layer or pic) and recipe.card.documents,
        (recipe.card.exit_head, variant.freeze, setting.loss),
        setting.loss == "angle" and (setting.loss_weights, recipe.scored and setting.candidates),
        "distill" in kinds and (setting.distill, setting.distill_temperature),
        aligned and (variant.add_mse, variant.align_reduction),
        vectors and variant.align_temperature,
        "align" in vectors and variant.compress,
        "imitate" in vectors and variant.detach,
        layers & {*setting.learned},
        sia and (recipe.related, setting.relations_temperature, [c.layer for c in recipe.path]),
        pic and (recipe.path, setting.chain_temperature),
        (sia or pic) and extra,
    )
