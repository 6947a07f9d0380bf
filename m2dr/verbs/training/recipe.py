"""Settings and a backbone become the recipe of one training: what is loaded, asked and written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from m2dr.errors import UserError
from m2dr.model.backbones import attend, most_tokens, read_config, usual_pooling
from m2dr.model.checkpoint import read_card
from m2dr.model.foreign import TEMPERATURE, reshaping_module
from m2dr.model.places import find_folder
from m2dr.records.card import ModelCard, Similarity, modes_of
from m2dr.records.cut import Cut
from m2dr.records.variant import ExitHead, Loss, Variant
from m2dr.settings import TrainSettings
from m2dr.train.base import Weights
from m2dr.train.chain import Chain, checkpoints_of, full_width
from m2dr.train.objective import Objective, Setting
from m2dr.train.terms import Asked, asked_of, with_teacher
from m2dr.train.tokenwise import Anchor, TokenRelations, shares_of
from m2dr.verbs.models import usual_dims
from m2dr.verbs.training.idle import refuse_idle

Kind = Literal["documents", "scored pairs", "sentences"]  # what a corpus holds

USUAL_PREFIX = 128  # the retrieval paper's k
STAIRS = 6  # cuts of a staircase, the whole included (Starbucks)
SHORTEST_RELATED = 16  # no shorter prefix has token relations (MIPIC, A.5)
OF_SENTENCES = ("simcse", "cosent", "angle")


@dataclass(frozen=True)
class Recipe:
    """A variant meets a backbone."""

    variant: Variant
    card: ModelCard  # of the model to be: no fingerprint yet
    whole: Cut
    choices: tuple[Asked, ...]  # what a step may ask
    setting: Setting
    related: tuple[int, ...]  # prefixes whose token relations are trained
    path: tuple[Cut, ...]  # checkpoints of the chain, small to whole

    @property
    def layers(self) -> tuple[int, ...]:
        """Every layer that some step trains, increasing."""
        return tuple(sorted({layer for asked in self.choices for layer in asked.layers}))

    def objective(self) -> Objective:
        """What is computed: new parameters each time, the same for the same recipe."""
        variant, whole = self.variant, self.whole
        relations = chain = None
        if variant.sia:
            layers, shares = [cut.layer for cut in self.path], shares_of(len(self.related))
            relations = TokenRelations(
                layers,
                self.related,
                whole.dim,
                self.setting.relations_temperature,
                shares,
                cast(Anchor, self.card.pooling),
            )
        if variant.pic:
            chain = Chain(self.path, self.setting.chain_temperature)
        return Objective(self.choices, whole, self.setting, relations, chain, 1 - variant.alpha)


def recipe_of(settings: TrainSettings, kind: Kind = "documents") -> Recipe:
    """Settle every number that settings leave to the variant, the backbone or the corpus.

    Raises:
        UserError: layers, dims or losses that the backbone does not have, the variant does not use
            or the corpus does not serve; or a setting that changes nothing.
    """
    recipe = settle(settings, kind)
    refuse_idle(settings, kind, recipe, lambda other: settle(other, kind))
    return recipe


def settle(settings: TrainSettings, kind: Kind = "documents") -> Recipe:
    """The same, with settings that change nothing."""
    variant, backbone = settings.recipe(), read_card(settings.backbone)
    _refuse(settings, variant, backbone)
    loss = _loss(settings, kind)
    layers = _layers(settings, variant, backbone)
    last = layers[0] if variant.alone and layers else backbone.layers
    whole = Cut(last, backbone.width)
    dims = _dims(settings, variant, whole)
    stairs, path = _cuts(settings, variant, whole)
    if loss == "angle":
        _refuse_odd([*dims, *(cut.dim for cut in stairs), whole.dim])
    shallow = layers or tuple(range(1, last))
    choices = asked_of(
        variant,
        [layer for layer in shallow if layer < last],
        dims,
        whole,
        stairs,
        together=kind != "documents",
        faithful=settings.faithful and not variant.whole,  # ESE's code alone weighs otherwise
        towards=[cut.layer for cut in path],
    )
    if settings.distill != "none":
        choices = with_teacher(choices, settings.contrastive_weight, settings.distill_weight)
    related = [d for d in dims if d >= SHORTEST_RELATED] if variant.sia else []
    if variant.sia and not related:
        raise UserError(f"Token relations need prefixes of {SHORTEST_RELATED} and more; set dims.")
    similarity = settings.similarity or _similarity(backbone, kind)
    setting = Setting(
        similarity=similarity,
        temperature=settings.temperature or TEMPERATURE[similarity],
        loss=loss,
        loss_weights=cast(Weights, settings.loss_weights),
        squares=variant.squares,
        compress=variant.compress,
        faithful=settings.faithful,
        learned=tuple(range(1, last)) if variant.weights == "dynamic" else (),
        relations_temperature=settings.relations_temperature,
        chain_temperature=settings.chain_temperature,
        seed=settings.seed,
        distill=settings.distill,
        distill_temperature=settings.distill_temperature,
    )
    card = _card(settings, variant, backbone, whole, choices, setting)
    return Recipe(variant, card, whole, choices, setting, tuple(related), path)


def _card(
    settings: TrainSettings,
    variant: Variant,
    backbone: ModelCard,
    whole: Cut,
    choices: Sequence[Asked],
    setting: Setting,
) -> ModelCard:
    """The card of the model to be."""
    config = attend(read_config(find_folder(settings.backbone)), settings.attention)
    pooling = usual_pooling(config) if settings.attention else backbone.pooling
    below = any(asked.layers[0] < whole.layer for asked in choices)
    return replace(
        backbone,
        backbone=settings.backbone,
        variant=variant.name,
        layers=whole.layer,
        cuts=tuple(sorted({cut for asked in choices for cut in asked.cuts})),
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
    """The exit heads that a training of the last layer alone leaves as they are.

    Fitted ones no longer fit when the layers below them have moved.
    """
    return "linear" if backbone.exit_head == "linear" else "none"


def _loss(settings: TrainSettings, kind: Kind) -> Loss:
    """The base loss: what was asked for, or what the corpus is made for."""
    usual: dict[Kind, Loss] = {
        "documents": "contrastive",
        "scored pairs": "angle",
        "sentences": "simcse",
    }
    loss = settings.loss or usual[kind]
    if kind == "documents" and loss in OF_SENTENCES:
        raise UserError(
            f"loss = {loss} trains on sentences, and {settings.corpus} holds queries and documents."
            " Leave loss out, or name a file of sentence pairs."
        )
    if kind == "sentences" and loss in ("cosent", "angle"):
        raise UserError(
            f"loss = {loss} needs pairs with scores, and {settings.corpus} holds single sentences. "
            "Set loss=simcse, or name a file of scored pairs."
        )
    return loss


def _similarity(backbone: ModelCard, kind: Kind) -> Similarity:
    """Sentences are compared by cosine, whatever the backbone was made for."""
    return backbone.similarity if kind == "documents" else "cosine"


def _refuse(settings: TrainSettings, variant: Variant, backbone: ModelCard) -> None:
    """Refuse what the backbone or the rest of the recipe does not allow."""
    _refuse_long(settings, backbone)
    _refuse_space(settings, variant, backbone)
    _refuse_frozen(settings, variant)


def _refuse_frozen(settings: TrainSettings, variant: Variant) -> None:
    """Refuse a frozen encoder beside which nothing is trained, or which should change."""
    if not variant.freeze:
        return
    if variant.exit_head == "none" or variant.alone or not variant.shallow:
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
    """Refuse what the backbone's pooling and the modules behind it do not allow."""
    name = "attention" if settings.attention else "pooling"
    asked = getattr(settings, name)
    if asked and len(modes_of(backbone.pooling)) > 1:
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
    layers = tuple(sorted(set(settings.layers)))
    for layer in layers:
        backbone.check(Cut(layer, 1))
    if layers and variant.staircase:
        raise UserError(
            f"Variant {variant.name} trains a staircase of cuts, so layers = {list(layers)} would "
            'do nothing. Set checkpoints instead, such as checkpoints=["L2D32"].'
        )
    if layers and not (variant.shallow or variant.alone):
        raise UserError(
            f"Variant {variant.name} trains no shallow layers, so layers = {list(layers)} would do "
            "nothing. Leave it out, or set shallow=true."
        )
    return layers


def _dims(settings: TrainSettings, variant: Variant, whole: Cut) -> tuple[int, ...]:
    dims = tuple(sorted(set(settings.dims)))
    if dims and dims[-1] > whole.dim:
        raise UserError(f"Dim {dims[-1]} was asked for; this backbone has {whole.dim} coordinates.")
    if dims and variant.prefixes == "none":
        hint = "Set checkpoints instead." if variant.staircase else "Or set prefixes=one."
        raise UserError(
            f"Variant {variant.name} trains no prefixes, so dims = {list(dims)} would do nothing. "
            f"Leave it out. {hint}"
        )
    if len(dims) > 1 and variant.prefixes == "one":
        raise UserError(
            f"Variant {variant.name} trains one prefix; dims = {list(dims)} names {len(dims)}. "
            "Set prefixes=many for several."
        )
    if variant.alone:
        return dims
    return tuple(dim for dim in dims if dim < whole.dim) or _usual(variant, whole.dim)


def _usual(variant: Variant, width: int) -> tuple[int, ...]:
    """The prefixes of a recipe whose settings name none."""
    below = [dim for dim in usual_dims(width) if dim < width]
    if variant.prefixes == "none":
        return ()
    if not below:
        raise UserError(f"A width of {width} has no usual prefix; name one with dims=[…].")
    if variant.prefixes == "many":
        return tuple(dim for dim in below if dim >= SHORTEST_RELATED or not variant.sia)
    return (max(dim for dim in below if dim <= USUAL_PREFIX),)


def _cuts(
    settings: TrainSettings, variant: Variant, whole: Cut
) -> tuple[tuple[Cut, ...], tuple[Cut, ...]]:
    """The cuts of a staircase below the whole, and the checkpoints of a chain."""
    named = tuple(Cut.parse(word) for word in settings.checkpoints)
    chained = variant.sia or variant.pic
    if named and not (variant.staircase or chained):
        raise UserError(
            f"Variant {variant.name} has no checkpoints, so checkpoints = "
            f"{list(settings.checkpoints)} would do nothing. Leave it out, or set staircase=true."
        )
    for cut in named:
        if cut.layer > whole.layer or cut.dim > whole.dim:
            raise UserError(f"Checkpoint {cut} was asked for; the whole encoder is {whole}.")
    path: tuple[Cut, ...] = ()
    if chained:
        below = tuple(cut for cut in named if cut != whole)
        path = (*below, whole) if named else checkpoints_of(whole.layer, whole.dim)
        path = full_width(path) if variant.full_checkpoints else path
    stairs: tuple[Cut, ...] = ()
    if variant.staircase:
        stairs = tuple(cut for cut in named if cut != whole) or stairs_of(whole)
    return stairs, path


def stairs_of(whole: Cut) -> tuple[Cut, ...]:
    """Starbucks' cuts below the whole; scaled from (2, 32), (4, 64) … (10, 512) of (12, 768)."""
    below = [dim for dim in usual_dims(whole.dim) if dim < whole.dim]
    dims = below[max(0, len(below) - min(STAIRS, whole.layer) + 1) :]
    layers = [whole.layer * place // (len(dims) + 1) for place in range(1, len(dims) + 1)]
    return tuple(Cut(layer, dim) for layer, dim in zip(layers, dims, strict=True))


def _or(value: str | None, other: str) -> str:
    return other if value is None else value
