"""`ringcomm.horovod.tensorflow.elastic`: ranks are killed while Keras and TensorFlow train."""

import os
import signal
import sys
from pathlib import Path

# Before TensorFlow is loaded: no GPU is looked for, and nothing is said about it.
os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", OMP_NUM_THREADS="1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402

import ringcomm.horovod.tensorflow as hvd  # noqa: E402
import ringcomm.horovod.tensorflow.keras as khvd  # noqa: E402
from elastic_ranks import Ranks, ask, die  # noqa: E402
from ranks_in_processes import run  # noqa: E402

BATCH, STEPS, EPOCHS, RATE = 4, 6, 2, 0.05
HERE = np.random.default_rng(5).normal(size=(64, 5)).astype("float32")


def model_of():
    tf.keras.utils.set_random_seed(3)
    return tf.keras.Sequential([
        tf.keras.Input((5,)), tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(1)
    ])  # fmt: skip


def batch_of(step, rank, size):
    """The rank's part of a step's samples."""
    first = (BATCH * 3 * step) % 48
    return HERE[first : first + 12][rank::size]


def flat(variables):
    return np.concatenate([one.numpy().ravel() for one in variables])


def loop(slot, graph):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    model, optimizer = model_of(), tf.keras.optimizers.SGD(RATE, momentum=0.9)
    rate_of_resets = []

    def one_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        grads = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))

    step = tf.function(one_step, reduce_retracing=True) if graph else one_step

    @hvd.elastic.run
    def train(state):
        while state.step < 9:
            if slot == 1 and state.step == 4:
                die()
            x = batch_of(state.step, hvd.rank(), hvd.size())
            step(tf.constant(x))
            state.log = [*state.log, hvd.size()]
            state.step += 1
            if state.step == 6 and slot == 0:
                ask()
            state.commit()

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0, log=[])
    state.register_reset_callbacks([lambda: rate_of_resets.append(hvd.size())])
    train(state)
    hvd.shutdown()
    return flat(model.weights), state.log, rate_of_resets


def alone(steps):
    model, optimizer = model_of(), tf.keras.optimizers.SGD(RATE, momentum=0.9)
    for step in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(batch_of(step, 0, 1))))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return flat(model.weights)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_a_tape_goes_on_without_the_dead_and_with_newcomers(tmp_path, graph):
    ranks = Ranks(tmp_path, 3, loop, graph)
    ranks.add_when_asked(3)
    found, ends = ranks.results()
    assert ends == {0: 0, 1: -signal.SIGKILL, 2: 0, 3: 0}, found
    assert found[0][1] == found[2][1] == found[3][1] == [3, 3, 3, 3, 2, 2, 3, 3, 3]
    assert found[0][2] == found[2][2] == [2, 3] and found[3][2] == []
    for slot in (2, 3):
        assert (found[0][0] == found[slot][0]).all()
    # All samples of a step are in it, whoever has them. Not here: this process is forked again.
    (expected,) = run(1, alone, 9)
    np.testing.assert_allclose(found[0][0], expected, rtol=0, atol=1e-6)


class Death(tf.keras.callbacks.Callback):
    def __init__(self, state):
        super().__init__()
        self.state = state

    def on_train_batch_begin(self, batch, logs=None):
        if (self.state.epoch, self.state.batch) == (1, 2):
            die()


def fits(slot):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    khvd.init()
    model = model_of()
    optimizer = khvd.DistributedOptimizer(tf.keras.optimizers.SGD(RATE))
    model.compile(optimizer, "mse", jit_compile=False)
    state = khvd.elastic.KerasState(model, batch=0, epoch=0)
    seen = []
    callbacks = [
        khvd.elastic.UpdateBatchStateCallback(state),
        khvd.elastic.UpdateEpochStateCallback(state),
        tf.keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(
                (khvd.size(), state.epoch, state.batch)
            )
        ),
        khvd.elastic.CommitStateCallback(state),
    ]
    if slot == 1:
        callbacks.append(Death(state))

    @khvd.elastic.run
    def train(state):
        mine = [batch_of(one, khvd.rank(), khvd.size())[:BATCH] for one in range(STEPS)]
        x = np.concatenate(mine)
        while state.epoch < EPOCHS:
            left = STEPS - state.batch
            model.fit(
                x[-BATCH * left :], np.ones(BATCH * left), BATCH, epochs=1, verbose=0,
                callbacks=callbacks, shuffle=False,
            )  # fmt: skip

    train(state)
    khvd.shutdown()
    return flat(model.weights), seen, (state.epoch, state.batch)


def test_fit_goes_on_in_the_epoch_in_which_a_rank_has_died(tmp_path):
    found, ends = Ranks(tmp_path, 3, fits).results()
    assert ends == {0: 0, 1: -signal.SIGKILL, 2: 0}, found
    assert (found[0][0] == found[2][0]).all() and found[0][2] == found[2][2] == (EPOCHS, 0)
    expected = [(3, 0, one) for one in range(1, 7)] + [(3, 1, 1), (3, 1, 2)]
    assert found[0][1] == found[2][1] == expected + [(2, 1, one) for one in (3, 4, 5, 6)]


def test_variables_are_saved_and_restored():
    one, two = tf.Variable([1.0, 2.0]), tf.Variable(3)
    state = hvd.elastic.TensorFlowState([one, two], batch=1)
    one.assign_add([1.0, 1.0])
    state.batch = 5
    state.restore()
    assert one.numpy().tolist() == [1, 2] and state.batch == 1
    two.assign(7)
    state.batch = 2
    state.save()
    two.assign(8)
    state.restore()
    assert two.numpy() == 7 and state.batch == 2
    with pytest.raises(ValueError, match="needs variables"):
        hvd.elastic.TensorFlowState()
    with pytest.raises(ValueError, match="build the model"):
        hvd.elastic.TensorFlowKerasState(tf.keras.Sequential([tf.keras.layers.Dense(1)]))
