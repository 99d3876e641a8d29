"""A launcher written by hand: as many processes as GPUs, each with its place in the environment.

python launcher.py --nproc 2 train.py --epochs 2
"""

import argparse
import os
import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(nproc, words):
    """Start the ranks; the first status that is not 0, at which the others are ended."""
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    env.update(WORLD_SIZE=str(nproc), OMP_NUM_THREADS="1")
    ranks = []
    for rank in range(nproc):
        env.update(RANK=str(rank), LOCAL_RANK=str(rank))
        ranks.append(subprocess.Popen([sys.executable, *words], env=dict(env)))
    try:
        while True:
            codes = [rank.poll() for rank in ranks]
            failed = [code for code in codes if code]
            if failed or None not in codes:
                return failed[0] if failed else 0
            time.sleep(0.05)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.terminate()
            rank.wait()


def main():
    parser = argparse.ArgumentParser(description="start the ranks of a program")
    parser.add_argument("--nproc", type=int, required=True)
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    sys.exit(launch(args.nproc, [args.training_script, *args.training_script_args]))


if __name__ == "__main__":
    main()
