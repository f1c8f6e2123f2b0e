"""Configs refuse what cannot be, in one line that names the fields and their place."""

from types import SimpleNamespace

import pytest
import yaml
from refusal import refused

from common.evaluation.metrics import InterpolationError, Psnr
from common.training.config import instantiate, name_of
from common.training.distributed import ClusterConfig
from common.training.optimizer import OptimConfig
from common.training.task import RefreshConfig
from common.training.trainer import TrainerConfig
from film.config import FilmConfig
from film.data.augment import ReferenceAugment
from film.data.cutting import EvaluationCut, TrainingCut
from film.data.datasets import SnuFilm, Vimeo90K
from film.data.procedural import MovingShapes
from film.data.record_sources import TfdsTriplets
from film.data.triplet_batches import MixtureConfig, TripletConfig
from film.evaluation.triplet_evaluation import FilmEvaluation
from film.training.interpolation_task import FilmTask
from plugins.control.training.control_task import ControlTask
from plugins.data.captioned_batches import CaptionedConfig
from plugins.data.own_batches import OwnPicturesConfig
from plugins.diffusion.networks.unet_config import UNetConfig
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule
from plugins.diffusion.training.denoising_task import DenoisingTask
from plugins.diffusion.training.losses import ErrorBetween
from plugins.evaluation.control_fidelity import ControlEvaluation
from plugins.metrics.fidelity import EdgeF1
from recipes.countries.data import CountriesConfig
from recipes.film_small.drawn_scenes import DrawnScenes
from recipes.film_small.moving_photographs import MovingPhotographs
from recipes.small_world.data import WorldConfig
from reveal.evaluation.benchmarks import OwnQuestions
from reveal.evaluation.memory_evaluation import SetsEvaluation
from reveal.network.config import RevealConfig, TowerConfig, VitConfig
from reveal.network.generator import Decoding
from reveal.training.augment import Augment
from reveal.training.joint import Joint
from reveal.training.losses import Weights
from reveal.training.own_batches import OwnDataConfig
from reveal.training.warm_start import WarmStart

KNOWLEDGE = dict(knowledge=SimpleNamespace(sources=("a",), items=None, vocabulary=None))
OWN = dict(knowledge="nowhere", questions="nowhere", sources=["a"], tokenizer="nowhere")
FILMS = dict(metrics={"psnr": Psnr()}, sets={"a": [None]}, regions=["moving"])
SSIM = 'metrics={"ssim":{"_target_":"common.evaluation.metrics.Ssim"}}'
# What a class needs, and changes that it refuses, as in a command; all their fields are in the message.
REFUSED = [
    (OptimConfig, {}, "name=sgd schedule=sgd momentum_dtype=sgd warmup=-1 cooldown=-1 decay_every=-1 timescale=-1"),
    (OptimConfig, {}, "lr=-1.0 decay_rate=-1.0 clip=-1.0 weight_decay=-1.0 update_clip=-1.0 ema_power=-1.0 lr=.nan"),
    (OptimConfig, {}, "final_lr=1.5 momentum=1.5 ema=1.5 lr=0.0 decay_every=0 name=adam&weight_decay=0.1 warmup=1.5"),
    (OptimConfig, {}, "no_decay=bias no_decay=['(bias'] multipliers=[ab] multipliers=[[a,-1]] multipliers=[[a,1,2]]"),
    (OptimConfig, {}, "multipliers=[['[a',1]] multipliers=[[3,1]]"),
    (TrainerConfig, {}, "evaluate_every=15&checkpoint_every=10 best=psnr accumulate=0 picture_every=-1 keep_every=-2"),
    (TrainerConfig, {}, "evaluate_every=-10 sharding=[[kernel,split]] sharding=[['(',fsdp]] profile=[3] profile=[3,2]"),
    (RefreshConfig, {}, "every=0 every=5&lag=5 lag=-1 spare=-1"),
    (ClusterConfig, {}, "processes=2 process=-1 process=1"),
    (InterpolationError, {}, "per=colour"),
    (FilmConfig, {}, "pyramid_levels=0 pyramid_levels=1000000000 fusion_pyramid_levels=8 specialized_levels=7"),
    (FilmConfig, {}, "sub_levels=5 filters=0 flow_convs=[3,3] flow_filters=[32,64,1,256] correlation_radius=[1,1]"),
    (FilmConfig, {}, "correlation_radius=[0,0,0,-1] flow_convs=[3,3,3,1001] coverage=true sided_levels=1"),
    (FilmConfig, {}, "filters='16' filters=16.5 filters=true flow_convs='3333' flow_convs=3 flow_convs=null"),
    (FilmConfig, {}, "flow_convs=[3,'3',3,3] blend=1 blend='true' blend=null"),
    (ReferenceAugment, {}, "angle=60.0 corners=grey"),
    (TrainingCut, {}, "size=98 gaps=[] gaps=[0,1] candidates=0"),
    (EvaluationCut, {}, "gap=0 spacing=0 gap=3&quarters=true"),
    (MovingShapes, {}, "count=0 size=8 motion=-1.0"),
    (TfdsTriplets, dict(dataset="x"), "keys=[a]"),
    (Vimeo90K, dict(folder="x"), "split=val"),
    (SnuFilm, dict(folder="x"), "difficulty=mild"),
    (MixtureConfig, dict(sources=[MovingShapes()]), "sources=[] weights=[1.0,2.0] weights=[0.0] crop=0 threads=0"),
    (TripletConfig, {}, "crop=30 max_motion=[[5,1.0],[5,2.0]] scales=[1.5] scales=[]"),
    (FilmEvaluation, FILMS, "metrics={} sets={} baselines=[nosuch] training_metrics=[nosuch] training_sets=[nosuch]"),
    (FilmEvaluation, FILMS, "moments=[nosuch] scales=[2.0] limit=-1 search=0.5 compare_with=[average] " + SSIM),
    (FilmEvaluation, FILMS, "compare_with=['a/x','b/x.safetensors']"),
    (FilmTask, dict(model=FilmConfig()), "losses={} dtype=float16 levels=1"),
    (EdgeF1, {}, "target=mask"),
    (
        Schedule,
        {},
        "sigma_min=-1.0 clip_sample_range=0.0 steps_offset=-1 trained_betas=[0.1,1.0]",
    ),
    (FlowSchedule, {}, "shift=0.0 num_train_timesteps=1"),
    (ErrorBetween, dict(first=0, last=5), "first=-1 first=5&last=5"),
    (ControlTask, dict(base="x"), "losses={} dtype=float16 kind=lora"),
    (DenoisingTask, dict(unet=UNetConfig()), "losses={} dtype=float16 min_snr=-1.0"),
    (CaptionedConfig, {}, 'length=2 drop=1.5 tag=1.5 plain=-0.1 repeat={"all":-1} threads=0'),
    (CaptionedConfig, {}, 'vary={"low":[3]} vary={"low":50}'),
    (OwnPicturesConfig, dict(path="x"), "crop=left size=0 unseen=1 latents=x&crop=random"),
    (
        ControlEvaluation,
        dict(data=CaptionedConfig(), metrics={"f": EdgeF1()}),
        "metrics={} strengths=[] count=1",
    ),
    (DrawnScenes, {}, "crop=50 motion=[9,3] still=2.0 run=5 gaps=[0,2] batch_size=0"),
    (MovingPhotographs, {}, "size=66 time=third blurred=1.5 repeated=-0.1 layers=[3,1] motion=[0,10] motion=[1,999]"),
    (WorldConfig, {}, "batch_size=0 size=8 near=-1"),
    (CountriesConfig, {}, "batch_size=0 size=8 shuffle=2 sources=[graph]"),
    (RevealConfig, {}, "fusion_layers=12 prior=sum bos=32128 width=0 heads=-1 width=true"),
    (VitConfig, {}, "heads=5 patch=15"),
    (TowerConfig, {}, "width=6 weight=1.0"),
    (Decoding, {}, "length=0 width=0 penalty=-1"),
    (Augment, {}, "crop=[0.8,0.5] brightness=1 noise=-1"),
    (Weights, {}, "contrastive=1.5 gap=-1"),
    (OwnDataConfig, OWN, "batch_size=0 answer_length=1 crop=[0,1] item_crop=[0.5] drop_image=2 sources=[a,a]"),
    (WarmStart, KNOWLEDGE, "k=-1 k=0 dtype=float16"),
    (Joint, KNOWLEDGE, "find=worst k=2&reencode=3"),
    (SetsEvaluation, dict(sets={"a": OwnQuestions(path="x", images="x")}), "batch=0 limit=-1 sets={} k=3"),
]


@pytest.mark.parametrize(
    ("kind", "needs", "change"),
    [(kind, needs, change) for kind, needs, changes in REFUSED for change in changes.split()],
)
def test_impossible_values_are_refused_by_name(kind, needs, change):
    words = [word.split("=", 1) for word in change.split("&")]
    node = {"_target_": name_of(kind)} | needs
    assert isinstance(instantiate(node), kind)
    message = refused(ValueError, instantiate, node | {name: yaml.safe_load(value) for name, value in words}, "place")
    assert message.startswith("place.") and all(name in message for name, _ in words)
