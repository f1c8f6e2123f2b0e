"""The training objective: the loss falls, the teacher's flow has FILM's sign and scale, the start knows motion."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusal import refused
from toy import CONFIG, parameters, toy
from translation import MOTION, SIDE, batch, partly_valid

import film
from common.nn.init import COMPILE_FAST
from common.training.mesh import make_mesh, shard_batch
from common.training.objectives import L1, Scope, Vgg
from common.training.task import Context
from common.weights.porting import assemble, flatten, unflatten_like
from film.config import FilmConfig
from film.io.weights import save
from film.losses import SMALLEST_WEIGHT, Laplacian, TeacherFlow, Visibility, WarpedL1, flow_error
from film.model import Film, FilmOutput
from film.training.interpolation_task import FilmTask
from film.visualization import TripletSheet
from recipes.film_small.flow_pretraining import FlowTask

START = FilmConfig(3, 2, 1, 2, (2, 2), (16, 16), 8)
SMALL_START = dataclasses.replace(START, correlation_radius=(1, 2), bilateral=True, blend=True)
LEAST = FilmConfig(2, 2, 1, 1, (1, 1), (8, 8), 4)  # gradients: every kind of layer once, since compiling takes longest
BILATERAL = dataclasses.replace(LEAST, correlation_radius=(1, 0), bilateral=True, blend=True)
HELPED = {"l1": L1(), "warped": WarpedL1(weight=[[0, 0.0], [10, 1.0]]), "flow": TeacherFlow(weight=0.5)}
TASKS = {"paper": FilmTask(LEAST), "bilateral": FilmTask(BILATERAL, HELPED), "flow": FlowTask(BILATERAL)}


def exact_output(motion: tuple[float, float], levels: int = 4) -> FilmOutput:
    """A perfect FILM's output on `batch(motion)`: whole flows, in pixels of each level."""
    image, flow = jnp.zeros((2, SIDE, SIDE, 3)), jnp.array(motion, jnp.float32)
    forward = [jnp.broadcast_to(flow / 2**i, (2, SIDE >> i, SIDE >> i, 2)) for i in range(levels)]
    return FilmOutput(image, forward, [-flow for flow in forward], image, image)


def context(step: int = 0, frozen=None) -> Context:
    return Context(jnp.int32(step), jax.random.key(0), frozen or {})


@functools.cache
def params_of(config: FilmConfig):
    return nnx.to_pure_dict(nnx.state(toy(config)))


def test_the_flow_error_is_zero_for_exact_flows_alone():
    compiled, truth = jax.jit(flow_error), batch()
    still = (4 + 2) / 2  # mean of |dx|, |dy|, in full-size pixels, at every level
    swapped = truth | dict(flow0=truth["flow1"], flow1=truth["flow0"])
    for motion, data, error in ((MOTION, truth, 0), ((0, 0), truth, still), ((-4, 2), truth, 2 * still)):
        assert compiled(exact_output(motion), data) == pytest.approx(error, abs=1e-6)
    assert compiled(exact_output(MOTION), swapped) > 5
    assert compiled(exact_output(MOTION, levels=5), partly_valid()) == pytest.approx(0, abs=1e-6)


def test_the_loss_is_the_weighted_sum_of_its_terms():
    """Perceptual networks are loaded by the file's name: VGG-16 with random weights."""
    task = FilmTask(LEAST, HELPED | {"vgg": Vgg(weight=0.5)}, networks={"vgg": "random-16"})
    loss, metrics = jax.jit(task.loss)(params_of(LEAST), batch(side=16), context(5, task.frozen()))
    expected = metrics["l1"] + 0.5 * (metrics["warped"] + metrics["flow"] + metrics["vgg"])
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    assert min(float(metrics[name]) for name in ("l1", "warped", "flow", "vgg", "psnr")) > 0


def test_a_batch_without_teacher_flow_is_refused():
    data = {name: value for name, value in batch().items() if not name.startswith(("flow", "valid"))}
    refused(ValueError, lambda: TeacherFlow()(Scope(exact_output(MOTION), data, context())), match="TeacherFlow")


def uneven() -> dict[str, jax.Array]:
    """Two small examples that weigh differently in a loss."""
    data = batch(side=16)
    return data | {"valid0": data["valid0"].at[0].set(0)}


def gradient_of(task, mesh=None):
    """The compiled loss and gradient at step 0."""
    return jax.jit(jax.value_and_grad(lambda p, data: task.loss(p, data, context()._replace(mesh=mesh))[0]))


@functools.cache
def alone(name: str):
    return gradient_of(TASKS[name])


@pytest.mark.long
def test_the_gradient_of_bfloat16_is_near():
    runs = alone("paper"), gradient_of(dataclasses.replace(TASKS["paper"], dtype="bfloat16"))
    trees = [jax.tree.leaves(jax.device_get(run(params_of(LEAST), uneven())[1])) for run in runs]
    one, other = (np.concatenate([np.ravel(x) for x in leaves]) for leaves in trees)
    assert other.dtype == np.float32
    assert np.corrcoef(one, other)[0, 1] > 0.98 and not np.array_equal(one, other)


@pytest.mark.long
@pytest.mark.parametrize("name", TASKS)
def test_the_loss_falls(name):
    """Descent by the gradient's sign on one batch; the step stays 0, so that nothing but the parameters changes."""
    params, losses, data = params_of(TASKS[name].model), [], uneven()
    for _ in range(30):
        loss, grads = alone(name)(params, data)
        params = jax.tree.map(lambda p, g: p - 2e-3 * np.sign(g), params, jax.device_get(grads))
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0] and all(np.isfinite(losses))


@pytest.mark.long
@pytest.mark.parametrize(("name", "changes"), [("paper", {"remat": True}), ("flow", {})])
def test_two_devices_give_the_same_gradient(name, changes):
    """With activations computed again, too. The devices communicate only for the gradient."""
    start, data, mesh = params_of(TASKS[name].model), uneven(), make_mesh(2)
    shared = shard_batch(mesh, data)
    split = gradient_of(dataclasses.replace(TASKS[name], **changes), mesh).lower(start, shared).compile()
    one, other = (jax.tree.leaves(jax.device_get(x)) for x in (alone(name)(start, data), split(start, shared)))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=2e-6)
    assert not any(word in str(split.as_text()) for word in (" all-gather(", " all-to-all(", " collective-permute("))


@pytest.mark.long
@pytest.mark.parametrize("config", [START, SMALL_START], ids=["paper", "bilateral"])
def test_at_the_start_flow_points_along_the_motion_and_the_image_is_the_mean(config):
    motions = np.array([(3, 0), (-3, 0), (0, 3), (0, -3)])
    data = jax.tree.map(lambda *x: jnp.concatenate(x), *(batch(tuple(v), side=64, count=1) for v in motions.tolist()))
    params = jax.jit(FilmTask(config).init)(jax.random.key(0))
    out = assemble(Film, config, flatten(params))(data["x0"], data["x1"])
    for flow, sign in ((out.forward_flow[0], 1), (out.backward_flow[0], -1)):
        mean = sign * np.asarray(flow)[:, 8:-8, 8:-8].mean(axis=(1, 2))
        along, across = (mean * motions / 3).sum(axis=1), (mean * motions[:, ::-1] / 3).sum(axis=1)
        assert along.min() > 0.3 and (np.abs(across) < 0.5 * along).all()
    assert float(jnp.abs(out.image - 0.5 * (out.x0_warped + out.x1_warped)).mean()) < 0.05
    assert float(jnp.abs(out.image - data["y"]).mean()) < 0.1


def test_a_random_start_is_that_of_the_reference():
    """Keras' default; what starts at zero stays."""
    config = dataclasses.replace(SMALL_START, coverage=True, sided_levels=1, fusion_pyramid_levels=3)
    init = jax.jit(FilmTask(config, random_init=True).init, compiler_options=COMPILE_FAST)
    values = {path: np.asarray(value) for path, value in flatten(init(jax.random.key(0))).items()}
    zeros = {path for path, value in values.items() if not value.any()}
    assert zeros == {path for path in values if "hints" in path or "sides" in path or path.endswith("bias")}
    for path in values.keys() - zeros:
        *window, inputs, outputs = values[path].shape
        limit = np.sqrt(6 / (np.prod(window) * (inputs + outputs)))
        assert np.abs(values[path]).max() <= limit
        if values[path].size > 1000:
            assert values[path].std() == pytest.approx(limit / np.sqrt(3), rel=0.1)


def test_training_starts_from_given_weights_with_fewer_levels(tmp_path):
    film.save_model(tmp_path / "w.safetensors", toy(seed=4))
    task, stored = FilmTask(CONFIG, start_from=str(tmp_path / "w.safetensors")), parameters(toy(seed=4))
    started = flatten(task.start() or {})
    assert started.keys() == stored.keys()
    for path, value in started.items():
        np.testing.assert_array_equal(value, stored[path])
    assert FilmTask(CONFIG).start() is None
    refused(ValueError, lambda: FilmTask(START, start_from=task.start_from).start(), match="start_from")
    fewer = FilmTask(START, levels=2)
    assert len(jax.eval_shape(fewer.forward, params_of(START), batch()).forward_flow) == 2


@pytest.mark.long
def test_added_parts_change_nothing_until_they_are_trained(tmp_path):
    plain = FilmConfig(3, 3, 2, 2, (1, 1, 1), (8, 8, 8), 4, bilateral=True, blend=True)
    added = dataclasses.replace(plain, coverage=True, sided_levels=2)
    film.save_model(tmp_path / "w.safetensors", toy(plain, seed=4))
    task, data = FilmTask(added, start_from=str(tmp_path / "w.safetensors")), batch(side=32)
    params, forward = task.start() or {}, jax.jit(task.forward)
    common = {path: flatten(params)[path] for path in flatten(params_of(plain))}
    before = jax.jit(FilmTask(plain).forward)(unflatten_like(common, params_of(plain)), data)
    output = forward(params, data)
    for one, other in zip(jax.tree.leaves(output), jax.tree.leaves(before), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    weights = flatten(params)
    new = [path for path in weights if "hints" in path or "sides" in path]
    assert len(new) == 2 * (1 + 2) and all(not weights[path].any() for path in new)
    for path in new:
        changed = forward(unflatten_like({**weights, path: weights[path] + 0.1}, params), data)
        assert float(jnp.abs(changed.image - output.image).max()) > 1e-4
    moved = unflatten_like({path: w + 0.1 * ("sides" in path) for path, w in weights.items()}, params)
    flows = forward(moved, data)
    assert float(jnp.abs(flows.forward_flow[0] + flows.backward_flow[0]).max()) > 0.1
    save(tmp_path / "more.safetensors", jax.device_get(params), added)
    with pytest.raises(ValueError, match="hints"):
        FilmTask(plain, start_from=str(tmp_path / "more.safetensors")).start()


def test_an_even_mixture_knows_nothing_of_visibility():
    data = batch()
    data |= {"valid0": jnp.ones_like(data["valid0"]), "valid1": jnp.zeros_like(data["valid1"])}
    output = exact_output(MOTION)
    for weight, expected in ((0.5, np.log(2)), (1.0, 0.0), (0.0, -np.log(SMALLEST_WEIGHT))):
        scope = Scope(output._replace(weight=jnp.full((2, SIDE, SIDE, 1), weight)), data, context())
        assert float(Visibility()(scope)) == pytest.approx(expected, abs=1e-3)
    swapped = data | {"valid0": data["valid1"], "valid1": data["valid0"]}
    assert float(Visibility()(Scope(output._replace(weight=jnp.zeros((2, SIDE, SIDE, 1))), swapped, context()))) == 0
    refused(ValueError, lambda: Visibility()(Scope(output, data, context())), match="blend")


def test_the_laplacian_weighs_coarse_differences_more():
    y, data = batch()["y"], batch()
    checks = 0.1 * (jnp.indices((SIDE, SIDE)).sum(0) % 2 - 0.5)[..., None]

    @jax.jit
    def loss(image):
        return Laplacian()(Scope(exact_output(MOTION)._replace(image=image), data, context()))

    assert loss(y) == 0
    assert loss(y + 0.05) > 5 * loss(y + checks) > 0  # the same L1: in the coarsest band, and in the finest


def test_image_summaries_and_weights_of_a_run(tmp_path):
    task = FilmTask(CONFIG, image_summaries={"triplets": TripletSheet(rows=1)})
    sheet = task.pictures(params_of(CONFIG), batch())["triplets"]
    assert sheet.shape[1] >= 7 * SIDE and SIDE <= sheet.shape[0] < 2 * SIDE and np.isfinite(sheet).all()
    assert FilmTask(CONFIG, image_summaries={}).pictures(params_of(CONFIG), batch()) == {}
    task.export(tmp_path / "w.safetensors", jax.device_get(params_of(CONFIG)), {"steps": 3})
    assert film.load(tmp_path / "w.safetensors").config == CONFIG
