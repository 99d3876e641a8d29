"""A program in the style of TensorFlow 1, as Horovod's tutorials show it.

    session.py ANSWERS CHECKPOINTS [passes=N] [steps=N] [adasum] [ref] [threads=N]

Every rank writes what it saw to ANSWERS; rank 0 keeps checkpoints.
"""

import json
import sys

import numpy as np
import tensorflow as tf

import ringcomm.horovod.tensorflow as hvd

ROWS, STEPS = 24, 8


def settings():
    given = dict(one.partition("=")[::2] for one in sys.argv[3:])
    return given, int(given.get("passes", 1))


def batch():
    random = np.random.default_rng(5)
    x, y = random.random((ROWS, 5), np.float32), random.random((ROWS, 1), np.float32)
    return x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]


def network(x):
    initial = np.random.default_rng(hvd.rank()).standard_normal((5, 1)).astype("f")
    weight = tf.compat.v1.get_variable("weight", initializer=initial)
    table = tf.compat.v1.get_variable("table", initializer=tf.fill([4, 1], float(hvd.rank())))
    row = tf.nn.embedding_lookup(table, [1, 1])
    return tf.tanh(x @ weight) + tf.reduce_sum(row) / 8


def main():
    given, passes = settings()
    if "ref" in given:
        tf.compat.v1.disable_v2_behavior()
    else:
        tf.compat.v1.disable_eager_execution()
    hvd.init()
    x, y = (tf.compat.v1.placeholder(tf.float32, [None, width]) for width in (5, 1))
    loss = tf.reduce_mean(tf.square(network(x) - y))
    step = tf.compat.v1.train.get_or_create_global_step()
    optimizer = tf.compat.v1.train.MomentumOptimizer(0.2, 0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        backward_passes_per_step=passes,
        average_aggregated_gradients=passes > 1,
        sparse_as_dense=passes > 1,
        op=hvd.Adasum if "adasum" in given else hvd.Average,
    )
    train = optimizer.minimize(loss, global_step=step)
    # Beside the gradients, so that two operations wait at the same time.
    mean = hvd.allreduce(loss, name="mean")
    ranks = [hvd.rank_op(), hvd.size_op()]
    wanted = tf.compat.v1.trainable_variables()
    slots = [optimizer.get_slot(wanted[0], "momentum")]
    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=int(given.get("threads", 0)), intra_op_parallelism_threads=1
    )
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),
        tf.compat.v1.train.StopAtStepHook(last_step=int(given.get("steps", STEPS * passes))),
    ]
    losses, values = [], batch()
    with tf.compat.v1.train.MonitoredTrainingSession(
        checkpoint_dir=sys.argv[2] if hvd.rank() == 0 else None, config=config, hooks=hooks
    ) as session:
        while not session.should_stop():
            feeds = {x: values[0], y: values[1]}
            _, seen = session.run([train, mean], feeds)
            losses.append(float(seen))
            if not session.should_stop():
                weight, slot, told = session.run([wanted[0], *slots, ranks])
    assert told == [hvd.rank(), hvd.size()], told
    assert optimizer.get_slot_names() == ["momentum"]
    assert hvd.broadcast_object_fn(1 % hvd.size())(hvd.rank()) == 1 % hvd.size()
    answer = {"losses": losses, "weight": weight.tolist(), "slot": slot.tolist()}
    with open(f"{sys.argv[1]}.{hvd.rank()}", "w") as file:
        json.dump(answer, file)
    hvd.shutdown()


if __name__ == "__main__":
    main()
