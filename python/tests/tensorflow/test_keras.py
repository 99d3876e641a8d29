"""Horovod's interface for Keras on ringcomm: optimizers, callbacks, saved models."""

import os
import sys
from pathlib import Path

# Before TensorFlow is loaded: no GPU is looked for, and nothing is said about it.
os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", OMP_NUM_THREADS="1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402

import ringcomm.horovod.keras as hvd  # noqa: E402
import ringcomm.horovod.keras.callbacks as callbacks  # noqa: E402
import ringcomm.horovod.tensorflow as tfhvd  # noqa: E402
from ranks_in_processes import run  # noqa: E402

RANKS, EPOCHS = 2, 3
SGD = tf.keras.optimizers.SGD


def joined(body, *arguments):
    """What a rank does between `init` and `shutdown`."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    try:
        return body(*arguments)
    finally:
        hvd.shutdown()


def network(seed=1, normal=None):
    tf.keras.utils.set_random_seed(seed)
    layers = [tf.keras.layers.Dense(4, "tanh"), *([normal] if normal else [])]
    return tf.keras.Sequential([tf.keras.Input((5,)), *layers, tf.keras.layers.Dense(1)])


def data():
    random = np.random.default_rng(5)
    x = random.random((24, 5), np.float32)
    return x, x.sum(1, keepdims=True)


def fitted(model, optimizer, batch, mine=slice(None), more=(), epochs=EPOCHS, jit="auto"):
    x, y = data()
    model.compile(optimizer, "mse", jit_compile=jit)
    model.fit(
        x[mine], y[mine], batch, epochs, verbose=0, shuffle=False, callbacks=[*more]
    )  # fmt: skip
    return model.get_weights()


def alone():
    """One process on the full batch."""
    return fitted(network(), SGD(0.1, 0.9), 24, jit=False)


def of_ranks():
    return slice(hvd.rank(), None, hvd.size())


def by_passes(average):
    """Two passes before every step, without a word of jit_compile."""
    optimizer = hvd.DistributedOptimizer(
        SGD(0.1 if average else 0.05, 0.9), backward_passes_per_step=2,
        average_aggregated_gradients=average,
    )  # fmt: skip
    first = callbacks.BroadcastGlobalVariablesCallback(0)
    weights = fitted(network(1 + hvd.rank()), optimizer, 6, of_ranks(), [first])
    assert int(optimizer.iterations) == 2 * EPOCHS
    return weights


def exchanged_in_every_second_pass():
    variable = tf.keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    seen = []
    for step in range(4):
        optimizer.apply([tf.constant([hvd.rank() + step + 1.0])], [variable])
        seen.append(float(variable.value[0]))
    # Averages over the ranks: 1.5 + 2.5, then 3.5 + 4.5.
    assert seen == [0, -4, -4, -12]
    slices = tf.IndexedSlices(tf.ones([1]), tf.constant([0]), tf.constant([1]))
    with pytest.raises(ValueError, match="sparse_as_dense"):
        optimizer.apply([slices], [variable])


def of_own_layers():
    """The first layer's gradients stay here, as those of a sum over ranks."""
    rank, own, common = hvd.rank(), tf.keras.layers.Dense(1), tf.keras.layers.Dense(1)
    for layer in (own, common):
        layer.build((None, 1))
        layer.set_weights([np.ones((1, 1)), np.zeros(1)])
    kernels = [own.kernel, common.kernel]
    optimizer = hvd.PartialDistributedOptimizer(SGD(1.0), local_layers=own)
    optimizer.apply([tf.fill([1, 1], 1.0 + rank)] * 2, kernels)
    assert [float(np.sum(one)) for one in kernels] == [1 - (1 + rank) / 2, 1 - 1.5]
    other = hvd.DistributedOptimizer(SGD(1.0), scale_local_gradients=False)
    other.register_local_var(own.kernel)
    other.apply([tf.fill([1, 1], 1.0 + rank)] * 2, kernels)
    assert [float(np.sum(one)) for one in kernels] == [1 - (1 + rank) * 1.5, 1 - 3]
    with pytest.raises(ValueError, match="local_layers"):
        hvd.PartialDistributedOptimizer(SGD(), local_layers=[own.kernel])
    # A tape does the same, of layers and of sources.
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((own.kernel + common.kernel + own.bias) * (1.0 + rank))
    tape = tfhvd.PartialDistributedGradientTape(tape, local_layers=[own])
    local, others = tape.get_local_and_global_gradients(loss, [own.kernel, common.kernel, own.bias])
    assert [one for one, _ in local] == [own.kernel, own.bias]
    assert [float(np.sum(one)) for _, one in local] == [(1 + rank) / 2] * 2
    assert float(np.sum(others[0][1])) == 1.5


class Mine(tf.keras.optimizers.SGD):
    """An optimizer of a program's own."""


def saved(folder):
    """A model is saved, and goes on where it was: with and without ringcomm."""
    file = f"{folder}/{hvd.rank()}.keras"
    for kind, objects in ((SGD, {}), (Mine, {"Mine": Mine})):
        model = network()
        fitted(model, hvd.DistributedOptimizer(kind(0.1, 0.9)), 12, of_ranks(), jit=False)
        model.save(file)
        plain = tf.keras.models.load_model(file, custom_objects=objects)
        assert type(plain.optimizer) is kind
        again = hvd.load_model(file, objects.values(), compression=tfhvd.Compression.none)
        assert isinstance(again.optimizer, kind) and type(again.optimizer) is not kind
        x, y = data()
        for one in (model, again):
            one.fit(x[of_ranks()], y[of_ranks()], 12, 2, verbose=0, shuffle=False)
        for one, other in zip(model.get_weights(), again.get_weights()):
            np.testing.assert_allclose(one, other, atol=1e-6)
        assert len({str(one) for one in tfhvd.allgather_object(again.get_weights())}) == 1
        assert int(again.optimizer.iterations) == EPOCHS + 2
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(again.optimizer)


class OfVariables(tf.keras.optimizers.SGD):
    """One whose momentum may be a variable."""

    def build(self, variables):
        tf.keras.optimizers.Optimizer.build(self, variables)

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient * learning_rate * self.momentum)


class Rates(tf.keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.rates, self.logged, self.momenta = [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(round(float(self.model.optimizer.learning_rate), 6))
        self.momenta.append(round(float(self.model.optimizer.momentum), 6))

    def on_epoch_end(self, epoch, logs=None):
        self.logged.append(round(logs["lr"], 6))


def scheduled():
    kind = callbacks.LearningRateScheduleCallback
    cases = [
        (kind(8.0, 0.5, start_epoch=1), [1, 1, 8, 8, 4, 4]),
        (kind(8.0, lambda epoch: 1 + epoch, end_epoch=2), [8, 8, 16, 16, 16, 16]),
        (kind(8.0, lambda epoch: 1 + epoch, staircase=False), [8, 12, 16, 20, 24, 28]),
    ]
    for callback, expected in cases:
        seen = Rates()
        fitted(network(), SGD(1.0), 12, more=[callback, seen], jit=False)
        assert (seen.rates, seen.logged) == (expected, expected[1::2])
    with pytest.warns(UserWarning, match="momentum_correction"):
        fitted(network(), SGD(1.0, 0.9), 12, more=[kind(8.0, 0.5)], jit=False)
    with pytest.raises(ValueError, match="initial_lr"):
        kind(None, 0.5)
    optimizer, seen = OfVariables(1.0), Rates()
    # With the rate it grows eightfold for the batch that changes it.
    optimizer.momentum = tf.keras.Variable(0.1)
    model = network()
    during = tf.keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: within.append(float(optimizer.momentum))
    )
    within = []
    fitted(model, optimizer, 12, more=[kind(8.0, 1.0, 1), during, seen], epochs=2, jit=False)
    assert np.allclose(within, [0.1, 0.1, 0.8, 0.1]) and seen.momenta == [0.1] * 4


def best(folder):
    file = f"{folder}/best-{hvd.rank()}.keras"
    checkpoint = callbacks.BestModelCheckpoint("loss")
    with pytest.raises(ValueError, match="filepath"):
        fitted(network(), SGD(0.01), 12, more=[checkpoint], jit=False)
    checkpoint.filepath = file
    weights = fitted(network(), SGD(0.01), 12, more=[checkpoint], jit=False)
    for one, other in zip(tf.keras.models.load_model(file).get_weights(), weights):
        np.testing.assert_array_equal(one, other)


def normalized(layer):
    """Batch normalization, of which every rank sees a part of the batch."""
    rows = slice(None, 18) if hvd.rank() == 0 else slice(18, None)
    model, (x, y) = network(1, layer()), data()
    with tfhvd.DistributedGradientTape(tf.GradientTape(), op=tfhvd.Sum) as tape:
        loss = tf.reduce_sum(tf.square(model(x[rows], training=True) - y[rows]))
    found = tape.gradient(loss, model.trainable_variables)
    return [np.array(one) for one in (*found, *model.get_weights())]


def normalized_alone():
    tfhvd.init()
    model, (x, y) = network(1, tf.keras.layers.BatchNormalization()), data()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(x, training=True) - y))
    found = tape.gradient(loss, model.trainable_variables)
    return [np.array(one) for one in (*found, *model.get_weights())]


def different(ones, others):
    return max(float(np.abs(one - other).max()) for one, other in zip(ones, others))


def test_batches_are_normalized_over_all_ranks():
    expected = run(1, normalized_alone)[0]
    for found in run(RANKS, joined, normalized, tfhvd.SyncBatchNormalization):
        assert different(found, expected) < 1e-3
    assert different(run(RANKS, joined, normalized, tf.keras.layers.BatchNormalization)[0],
                     expected) > 1e-2  # fmt: skip


@pytest.mark.parametrize("average", [True, False])
def test_passes_train_as_one_process_does(average):
    expected = run(1, alone)[0]
    for found in run(RANKS, joined, by_passes, average):
        assert different(found, expected) < 1e-5


@pytest.mark.parametrize(
    "body",
    [exchanged_in_every_second_pass, of_own_layers, scheduled],
    ids=lambda body: body.__name__,
)
def test_parts(body):
    run(RANKS, joined, body)


@pytest.mark.parametrize("body", [saved, best], ids=lambda body: body.__name__)
def test_files(body, tmp_path):
    run(RANKS, joined, body, str(tmp_path))


def test_names():
    import ringcomm.horovod.tensorflow.keras as other

    assert hvd.DistributedOptimizer is other.DistributedOptimizer
    assert hvd.callbacks.MetricAverageCallback is callbacks.MetricAverageCallback
    for module in (hvd, callbacks):
        with pytest.raises(AttributeError, match="from-horovod"):
            module.no_such_name
