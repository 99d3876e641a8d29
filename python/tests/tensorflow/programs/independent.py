"""Many operations that do not depend on each other, in one graph, on one thread of TensorFlow's;
each rank asks for them in another order."""

import numpy as np
import tensorflow as tf

import ringcomm.horovod.tensorflow as hvd

COUNT = 30
v1 = tf.compat.v1


def order():
    """In which this rank asks."""
    return [int(at) for at in np.random.default_rng(hvd.rank()).permutation(COUNT)]


def sums():
    """Every operation, made in this rank's order."""
    answers = {}
    for index in order():
        one = tf.ones(4) * float(index + hvd.rank())
        if index % 3 == 0:
            answers[index] = hvd.allreduce(one, op=hvd.Sum, name=f"sum.{index}")
        elif index % 3 == 1:
            answers[index] = hvd.allgather(one, name=f"rows.{index}")
        else:
            name = f"part.{index}"
            answers[index] = hvd.grouped_reducescatter([one], op=hvd.Sum, name=name)[0]
    return [answers[index] for index in range(COUNT)]


def check(answers):
    ranks = range(hvd.size())
    for index, answer in enumerate(answers):
        total = sum(index + rank for rank in ranks)
        each = [float(index + rank) for rank in ranks]
        expected = [[total] * 4, np.repeat(each, 4), [total] * (4 // hvd.size())][index % 3]
        np.testing.assert_array_equal(answer, expected)


def gradients(session):
    """Every rank takes part in a gradient, also where its own share is zero."""
    one, root = tf.ones(3), hvd.size() - 1
    (of_root,) = tf.gradients(hvd.broadcast(one, root), one, [tf.ones(3) * (1.0 + hvd.rank())])
    mean = (1 + hvd.size()) / 2 if hvd.rank() == root else 0
    assert session.run(of_root).tolist() == [mean] * 3
    # A gradient of another type than the tensor's.
    wide = tf.ones(5, tf.float64)
    splits = [2] * hvd.size()
    (home,) = tf.gradients(hvd.alltoall(wide, splits)[0], wide, [tf.ones(2 * hvd.size())])
    assert session.run(home).tolist() == [1, 1, 1, 1, 0]


def main():
    hvd.init()
    config = v1.ConfigProto(inter_op_parallelism_threads=1)
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        answers = sums()
        for _ in range(3):
            came = session.run([answers[at] for at in order()])
            check([came[order().index(at)] for at in range(COUNT)])
        gradients(session)
    hvd.shutdown()
    print("all came")


main()
