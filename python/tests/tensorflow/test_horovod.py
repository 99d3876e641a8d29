"""`ringcomm.horovod.tensorflow`, called as programs that were written for Horovod call it."""

import os
import pickle
import re
import runpy
import sys
import threading
from pathlib import Path

# Before TensorFlow is loaded: no GPU is looked for, and nothing is said about it.
os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", OMP_NUM_THREADS="1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402

import ringcomm.horovod.tensorflow as hvd  # noqa: E402
import ringcomm.horovod.tensorflow.keras as khvd  # noqa: E402
from ranks_in_processes import run  # noqa: E402

RANKS = 3


def joined(body, *arguments):
    """What a rank does between `init` and `shutdown`."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    try:
        return body(*arguments)
    finally:
        hvd.shutdown()


def check(body):
    """The same in eager code and in a graph."""
    body()
    tf.function(body)()


def reductions():
    rank = hvd.rank()
    assert hvd.size() == hvd.local_size() == RANKS and hvd.local_rank() == rank
    mine = tf.fill([2, 3], rank + 1.0)

    def body():
        results = [hvd.allreduce(mine), hvd.allreduce(mine, average=False)]
        results += [hvd.allreduce(mine, op=op) for op in (hvd.Product, hvd.Min, hvd.Max)]
        results.append(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0))
        results.append(hvd.allreduce(mine + 2**-20, compression=hvd.Compression.fp16))
        for result, expected in zip(results, (2, 6, 6, 1, 3, 12, 2)):
            tf.debugging.assert_equal(result, tf.fill([2, 3], float(expected)))
        both = hvd.grouped_allreduce([mine, tf.constant([rank, 5])], op=hvd.Sum)
        tf.debugging.assert_equal(both[1], [3, 15])
        assert both[0].shape == (2, 3)
        half = hvd.allreduce(tf.constant([3]), op=hvd.Sum, prescale_factor=0.5)
        tf.debugging.assert_equal(half, [3])  # Integers are rounded towards zero: 3 times 1.
        tf.debugging.assert_equal(hvd.allreduce(mine, False, "", "/cpu:0"), tf.fill([2, 3], 6.0))
        tf.debugging.assert_equal(khvd.allreduce(mine, "it", False), tf.fill([2, 3], 6.0))

    check(body)


def moves():
    rank = hvd.rank()
    mine = tf.fill([rank, 2], float(rank))

    def body():
        tf.debugging.assert_equal(hvd.allgather(mine), [[1.0, 1], [2, 2], [2, 2]])
        tf.debugging.assert_equal(hvd.broadcast(tf.constant([rank, 7]), root_rank=1), [1, 7])

    check(body)
    hvd.barrier()
    assert hvd.allgather_object({"rank": rank})[2] == {"rank": 2}
    assert hvd.broadcast_object(["it", rank], root_rank=2) == ["it", 2]
    variables = [tf.Variable([float(rank)]), tf.Variable(rank)]
    hvd.broadcast_variables(variables, root_rank=2)
    assert [float(np.sum(one)) for one in variables] == [2, 2]


def unlike():
    mine = tf.ones([2, 3 + (hvd.rank() == 1)])

    def body():
        return hvd.allgather(mine, name="rows")

    # Programs of Horovod's expect an error of TensorFlow's, which in eager code is both.
    in_eager = (hvd.HorovodInternalError, tf.errors.FailedPreconditionError)
    for call, kinds in ((body, in_eager), (tf.function(body), (tf.errors.UnknownError,))):
        with pytest.raises(kinds[-1]) as told:
            call()
        assert all(isinstance(told.value, kind) for kind in kinds)
        # As a rank's error travels to who has started it.
        again = pickle.loads(pickle.dumps(told.value))
        assert type(again) is type(told.value) and str(again) == str(told.value)
        assert "'allgather.rows' is not the same operation on all ranks: ranks 0, 2: " in str(
            told.value
        ), told.value
        assert "float32 *x3; rank 1: allgather of float32 *x4" in str(told.value), told.value
    tf.debugging.assert_equal(hvd.allreduce(1.0, op=hvd.Sum), float(RANKS))


def tapes():
    rank = hvd.rank()
    weight, table = tf.Variable([1.0, 2.0]), tf.Variable(tf.zeros([4, 2]))
    unused = tf.Variable(0.0)

    def gradients(**settings):
        with hvd.DistributedGradientTape(tf.GradientTape(), **settings) as tape:
            rows = tf.gather(table, [rank, 3])
            loss = tf.reduce_sum(weight * (rank + 1)) + tf.reduce_sum(2 * rows)
        return tape.gradient(loss, [weight, table, unused])

    def body():
        found = gradients()
        tf.debugging.assert_equal(found[0], [2.0, 2.0])
        assert isinstance(found[1], tf.IndexedSlices) and found[2] is None
        third = tf.fill([2], 2 / 3)
        expected = tf.stack([third, third, third, 3 * third])
        tf.debugging.assert_near(tf.convert_to_tensor(found[1]), expected)
        dense = gradients(sparse_as_dense=True, op=hvd.Sum)[1]
        assert isinstance(dense, tf.Tensor)
        tf.debugging.assert_near(dense, 3 * expected)

    check(body)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(hvd.allreduce(weight, op=hvd.Sum) * (rank + 1))
    tf.debugging.assert_equal(tape.gradient(loss, weight), [6.0, 6.0])


def gradients():
    rank = hvd.rank()
    factor = rank + 1.0
    mine, rows = tf.constant([1.0, 2.0]), tf.fill([rank, 2], 1.0)

    def body():
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([mine, rows])
            both = hvd.grouped_allreduce([mine, rows[:0]], op=hvd.Sum)
            grouped = tf.reduce_sum(both[0] * factor)
            weights = tf.reshape(tf.range(6.0), [3, 2]) * factor
            gathered = tf.reduce_sum(hvd.allgather(rows) * weights)
            sent = tf.reduce_sum(hvd.broadcast(mine, root_rank=1) * factor)
        tf.debugging.assert_equal(tape.gradient(grouped, mine), [6.0, 6.0])
        # Averages over ranks, as Horovod's: twice the weights of the rows that came from here.
        expected = [[], [[0.0, 2]], [[4.0, 6], [8, 10]]][rank]
        found = tape.gradient(gathered, rows)
        tf.debugging.assert_near(found, tf.reshape(tf.constant(expected), [rank, 2]))
        of_root = 2.0 if rank == 1 else 0.0
        tf.debugging.assert_near(tape.gradient(sent, mine), [of_root, of_root])

    check(body)


def refusals():
    for module in (hvd, khvd, khvd.callbacks):
        with pytest.raises(AttributeError, match="from-horovod"):
            module.no_such_name
    for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        with pytest.raises(ValueError, match="one dimension at least"):
            call(tf.constant(1.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="one dimension at least"):
        hvd.alltoall(tf.constant(1.0))
    with pytest.raises(ValueError, match="splits are integers"):
        hvd.alltoall(tf.ones([3]), [0.5, 0.5, 1.0])
    with pytest.raises(ValueError, match="for op=Average"):
        hvd.DistributedGradientTape(
            tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0
        )
    with pytest.raises(ValueError, match="1 or more"):
        khvd.DistributedOptimizer(tf.keras.optimizers.SGD(), backward_passes_per_step=0)
    with pytest.raises(ValueError, match="Average or Sum"):
        khvd.DistributedOptimizer(tf.keras.optimizers.SGD(), op=hvd.Adasum)
    with pytest.raises(ValueError, match="is none"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="list of lists"):
        hvd.DistributedGradientTape(tf.GradientTape(), groups=0)
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)
    with pytest.raises(NotImplementedError, match="not scaled"):
        hvd.allreduce(tf.IndexedSlices(tf.ones([1]), tf.constant([0])), prescale_factor=2.0)
    assert not hvd.nccl_built() and not khvd.mpi_built()
    with pytest.raises(ValueError, match="neither"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Max)
    tf.keras.config.set_dtype_policy("mixed_float16")
    optimizer, model = khvd.DistributedOptimizer(tf.keras.optimizers.SGD()), network()
    with pytest.raises(ValueError, match="LossScaleOptimizer.*auto_scale_loss=False"):
        model.compile(optimizer, "mse", jit_compile=False)
    model.compile(optimizer, "mse", jit_compile=False, auto_scale_loss=False)


def rows():
    """Rows to all ranks, with gradients; and those of a set."""
    rank = hvd.rank()
    some = hvd.add_process_set([0, 2])
    mine = tf.Variable(tf.range(3.0) + 10 * rank)

    def body():
        sent = hvd.alltoall(mine)
        tf.debugging.assert_equal(sent, tf.constant([0.0, 10, 20]) + rank)
        with tf.GradientTape() as tape:
            came, counts = hvd.alltoall(mine, splits=[0, 1, 1])
            loss = tf.reduce_sum(came * (rank + 1.0))
        tf.debugging.assert_equal(counts, [min(rank, 1)] * 3)
        tf.debugging.assert_equal(tape.gradient(loss, mine), [2.0, 3, 0])
        with tf.GradientTape() as tape:
            part = hvd.reducescatter(mine, op=hvd.Sum, prescale_factor=0.5)
            loss = tf.reduce_sum(part * (rank + 1.0))
        tf.debugging.assert_equal(part, [0.5 * (30.0 + 3 * rank)])
        tf.debugging.assert_equal(tape.gradient(loss, mine), [1.5, 3, 4.5])
        both = hvd.grouped_allgather([mine[: rank + 1], tf.fill([1], rank)])
        assert both[1].shape[1:] == []
        tf.debugging.assert_equal(both[0], [0.0, 10, 11, 20, 21, 22])
        tf.debugging.assert_equal(both[1], [0, 1, 2])
        parts = hvd.grouped_reducescatter([mine, 2 * mine])
        tf.debugging.assert_equal(parts[1], 2 * parts[0])
        if rank != 1:
            tf.debugging.assert_equal(hvd.allreduce(rank, op=hvd.Sum, process_set=some), 2)
            tf.debugging.assert_equal(hvd.broadcast(rank, 2, process_set=some), 2)

    check(body)


def in_branches():
    """Names in branches and loops do not tell how much a rank has done before."""
    mine = tf.constant([hvd.rank() + 1.0])
    for _ in range(7 * hvd.rank()):
        tf.function(lambda one: tf.cond(one > 0, lambda: one, lambda: -one))(mine[0])

    @tf.function
    def body(several):
        with tf.GradientTape() as tape:
            tape.watch(mine)
            one = tf.cond(several, lambda: hvd.allreduce(mine, op=hvd.Sum), lambda: mine)
        loop = tf.while_loop(
            lambda at, _: at < 2,
            lambda at, sum: (at + 1, sum + hvd.allreduce(mine, op=hvd.Max)),
            (0, tf.zeros([1])),
        )
        return one, tape.gradient(one, mine), loop[1]

    assert [one.numpy().tolist() for one in body(tf.constant(True))] == [[6], [3], [6]]


def others():
    rank, some = hvd.rank(), hvd.add_process_set([0, 2])

    def body():
        asked = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()]
        tf.debugging.assert_equal(tf.stack(asked), [rank, RANKS, rank, RANKS])
        number = some.process_set_id
        tf.debugging.assert_equal(hvd.process_set_included_op(number), int(rank != 1))
        tf.debugging.assert_equal(hvd.size_op(number), 2)
        hvd.barrier()
        if rank != 1:
            apart = tf.constant([[3.0, 0], [0, 3]])[rank // 2]
            found = hvd.grouped_allreduce([apart, [1.0 + rank]], op=hvd.Adasum, process_set=some)
            tf.debugging.assert_near(found[0], [3.0, 3.0])
            tf.debugging.assert_near(found[1], [2.0])  # Of one direction: the average of 1 and 3.
        with tf.GradientTape() as tape:
            tape.watch(mine)
            loss = tf.reduce_sum(mine * (rank + 1))
        # Who is not in the set keeps its own.
        found = hvd.DistributedGradientTape(tape, process_set=some).gradient(loss, mine)
        tf.debugging.assert_equal(found, [2.0])
        with tf.name_scope(f"scope_{rank}"):
            tf.debugging.assert_equal(
                hvd.allreduce(mine, name="it", ignore_name_scope=True, op=hvd.Sum), [6.0]
            )

    mine = tf.constant([rank + 1.0])
    check(body)
    variables = [tf.Variable([rank]), tf.Variable(2.0 * rank)]
    new = hvd.broadcast_(variables, root_rank=1)
    for values in (variables, new):
        assert [float(np.sum(one)) for one in values] == [1, 2]
    assert hvd.broadcast_object_fn(2)(rank) == 2 == hvd.broadcast_object(rank, 2, None, "it")
    assert hvd.check_num_rank_power_of_2(4) and not hvd.check_num_rank_power_of_2(RANKS)
    with pytest.raises(NotImplementedError, match="power of two"):
        hvd.allreduce(mine, op=hvd.Adasum)
    kept = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
    weight = tf.Variable([0.0])
    kept.apply_gradients(kept.compute_gradients(lambda: tf.reduce_sum(weight * mine), [weight]))
    assert weight.numpy().tolist() == [-2]
    of_keras = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
    of_keras.apply([mine], [weight])
    assert weight.numpy().tolist() == [-4]


def in_other_orders():
    """Names of the program's, in another order on each rank, from threads."""
    rank, answers = hvd.rank(), {}

    def call(name):
        answers[name] = hvd.allreduce(tf.fill([3], float(name)), name=name, op=hvd.Sum).numpy()

    names = ["1", "2", "3"]
    threads = [
        threading.Thread(target=call, args=(name,)) for name in names[rank:] + names[:rank]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        assert answers[name].tolist() == [RANKS * float(name)] * 3


def uneven():
    weight = tf.Variable(tf.zeros([2]))
    for _ in range(1 + hvd.rank()):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(3 * weight)
        weight.assign_sub(tape.gradient(loss, weight))
    assert hvd.join() == 2
    assert weight.numpy().tolist() == [[-3, -5, -6][hvd.rank()]] * 2
    hvd.broadcast_variables([weight], root_rank=2)
    assert weight.numpy().tolist() == [-6, -6]


@pytest.mark.parametrize(
    "body",
    [
        reductions, moves, unlike, tapes, gradients, refusals, rows, in_branches, others,
        in_other_orders, uneven,
    ],  # fmt: skip
    ids=lambda body: body.__name__,
)
def test_calls(body):
    run(RANKS, joined, body)


def network(seed=1):
    tf.keras.utils.set_random_seed(seed)
    layers = [tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(3)]
    model = tf.keras.Sequential([tf.keras.Input((5,)), *layers])
    return model


def data():
    random = np.random.default_rng(5)
    return random.random((24, 5), np.float32), random.integers(0, 3, 24)


LOSS = tf.keras.losses.SparseCategoricalCrossentropy
RATE, EPOCHS = 0.2, 3


def by_tape():
    """As Horovod's tensorflow2 examples train."""
    model, (x, y) = network(1 + hvd.rank()), data()
    optimizer, loss_of = tf.keras.optimizers.SGD(RATE, 0.9), LOSS(from_logits=True)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        found = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(found, model.trainable_variables))
        return loss

    hvd.broadcast_variables(model.variables, root_rank=0)
    for _ in range(EPOCHS):
        step(x[hvd.rank() :: RANKS], y[hvd.rank() :: RANKS])
    return model.get_weights()


def by_fit(passes=None):
    """As Horovod's Keras examples train."""
    model, (x, y) = network(1 + khvd.rank()), data()
    optimizer = tf.keras.optimizers.SGD(RATE, 0.9, gradient_accumulation_steps=passes)
    optimizer = khvd.DistributedOptimizer(optimizer)
    assert isinstance(optimizer, tf.keras.optimizers.SGD)
    model.compile(optimizer, LOSS(from_logits=True), jit_compile=False)
    own, seen = [], []
    callbacks = [
        khvd.callbacks.BroadcastGlobalVariablesCallback(0),
        tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: own.append(logs["loss"])),
        khvd.callbacks.MetricAverageCallback(),
        tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: seen.append(logs["loss"])),
    ]
    mine = slice(khvd.rank(), None, RANKS)
    model.fit(
        x[mine], y[mine], 8 // (passes or 1), EPOCHS, verbose=0, shuffle=False, callbacks=callbacks
    )  # fmt: skip
    np.testing.assert_allclose(seen, np.mean(khvd.allgather_object(own), 0), rtol=1e-6)
    return model.get_weights()


def by_passes():
    """Two passes, whose gradients Keras averages, before each step."""
    return by_fit(2)


def seeded():
    """Dropout masks differ between ranks, the weights do not."""
    tf.keras.utils.set_random_seed(hvd.rank())
    layers = [tf.keras.layers.Dense(3), tf.keras.layers.Dropout(0.5, seed=hvd.rank())]
    model = tf.keras.Sequential([tf.keras.Input((5,)), *layers])
    model.compile(khvd.DistributedOptimizer(tf.keras.optimizers.SGD()), "mse", jit_compile=False)
    callback = khvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[layers[0].bias])
    layers[0].bias.assign([1.0 * hvd.rank()] * 3)
    callback.set_model(model)
    callback.on_train_begin()
    kernel, bias, seed = (
        np.array(one).tolist()
        for one in (layers[0].kernel, layers[0].bias, layers[1].seed_generator.state)
    )
    return kernel, bias, seed


def test_what_the_root_does_not_decide():
    first, *others = run(RANKS, joined, seeded)
    for other in others:
        assert other[0] == first[0] and other[1] != first[1] and other[2] != first[2]


def alone():
    """One process on the full batch; apart, since a process that has used TensorFlow must not be
    forked."""
    model, (x, y) = network(), data()
    model.compile(tf.keras.optimizers.SGD(RATE, 0.9), LOSS(from_logits=True), jit_compile=False)
    model.fit(x, y, 24, EPOCHS, verbose=0, shuffle=False)
    return model.get_weights()


@pytest.mark.parametrize("body", [by_tape, by_fit, by_passes], ids=lambda body: body.__name__)
def test_it_trains_as_one_process_does(body):
    expected = run(1, alone)[0]
    for found in run(RANKS, joined, body):
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one, other, atol=1e-5)


def in_mixed_precision():
    """One rank's first gradients overflow."""
    tf.keras.config.set_dtype_policy("mixed_float16")
    model, (x, y) = network(1 + khvd.rank()), data()
    x, y = x[khvd.rank() :: RANKS], y[khvd.rank() :: RANKS]
    weights = np.ones(len(x), np.float32)
    if khvd.rank() == 1:
        weights[:2] = 1e6
    optimizer = tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.SGD(RATE, 0.9))
    optimizer = khvd.DistributedOptimizer(optimizer)
    model.compile(optimizer, LOSS(from_logits=True), jit_compile=False)
    callbacks = [khvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(
        x, y, 2, 1, verbose=0, shuffle=False, callbacks=callbacks, sample_weight=weights
    )  # fmt: skip
    return model.get_weights(), float(optimizer.dynamic_scale), int(optimizer.iterations)


def test_all_ranks_leave_out_the_same_steps():
    for weights, scale, steps in (answers := run(RANKS, joined, in_mixed_precision)):
        assert (scale, steps) == (2.0**14, 3)
        for found, first in zip(weights, answers[0][0]):
            np.testing.assert_array_equal(found, first)


def warmed():
    model, (x, y) = network(), data()
    model.compile(tf.keras.optimizers.SGD(9.0), LOSS(from_logits=True), jit_compile=False)
    rates = []
    callbacks = [
        khvd.callbacks.LearningRateWarmupCallback(9.0, 2, True, verbose=1),
        tf.keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: rates.append(
                float(model.optimizer.learning_rate)
            )
        ),
    ]
    model.fit(x, y, 12, 3, verbose=0, callbacks=callbacks)
    return rates


def test_learning_rates_warm_up():
    # From a third to all of it in two epochs of two batches, by a batch's growth from the first.
    assert run(RANKS, joined, warmed) == [pytest.approx([4.5, 6, 7.5, 9, 9, 9])] * RANKS


def test_the_program_in_the_documentation(tmp_path):
    page = Path(__file__).resolve().parents[3] / "docs/python/from-horovod.md"
    texts = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
    (program,) = [text for text in texts if "import tensorflow" in text]
    (tmp_path / "program.py").write_text(program)
    run(2, started, str(tmp_path / "program.py"))


def started(program):
    runpy.run_path(program)
