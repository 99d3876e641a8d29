"""The suites of `scripts/test`: what each runs.

A suite is a function that returns its commands, or raises Missing where the machine lacks something.
run_suites.py runs them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import aarch64 as cross
from commands import (HOST, LOGS, ROOT, TARGET, TESTS, Command, Lacking, Together, cargo, tests_named, where_made,
                      where_there)
from tools import (Missing, cmake, cupy_venv, libclang, nccl_venv, need, nvcc, old_torch_venv, pinned, tensorflow_venv,
                   torch_venv, ucx, venv, wheel_files)

# Those that are suites of their own (Cargo.toml, programs/Cargo.toml).
APART = ["cuda", "kernels", "namespaces"]


def style():
    """rustfmt and clippy."""
    if shutil.which("rustup"):
        subprocess.run(["rustup", "component", "add", "rustfmt", "clippy"], cwd=ROOT,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return [
        cargo("fmt", "--all", "--check"),
        cargo("clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"),
        # No target that Cargo takes unasked.
        cargo("clippy", "--quiet", *tests_named(*APART), "--", "-D", "warnings"),
        cargo("fmt", "--check", cwd=ROOT / "fuzz"),
    ]


def integration_tests():
    """The integration tests that need nothing beyond this machine."""
    found = [path.stem for tests in TESTS for path in tests.glob("*.rs")]
    found += [path.parent.name for tests in TESTS for path in tests.glob("*/main.rs")]
    return sorted(set(found) - set(APART))


def unit():
    """Tests beside the code, of library and programs, and those of how tests are counted."""
    return [cargo("test", "--no-fail-fast", "--lib", "--bins"), Command(sys.executable, "scripts/test_results.py")]


def integration():
    """The integration tests: ranks as threads, processes and hosts, the C interface, the programs."""
    names, parts = integration_tests(), 8
    try:
        env, lacking = ucx(), []
    except Missing as reason:
        env, lacking = {}, [Lacking("ucx", reason)]
    return [
        *lacking,
        cargo("build", "--profile", "test", *tests_named(*names)),
        Together(*(cargo("test", "--no-fail-fast", *tests_named(*names[part::parts]), env=env)
                   for part in range(parts))),
        cargo("test", "--doc"),
    ]


# Of several hosts, with ranks that die, stop, abort, leave and disagree.
OVER_NETWORKS = ["several_hosts", "hosts", "messages", "splits", "stopped_ranks", "mismatches", "forks"]


def networks():
    """Ranks on several hosts over UCX and over a plugin, in suites that otherwise run over TCP; 200 deaths, stops and
    aborts over each."""
    need("cc")
    over_ucx = {**ucx(), "UCX_TLS": "tcp,self", "RINGCOMM_NET": "ucx"}
    plugin = TARGET / "net-plugin/libnccl-net-fixture.so"
    plugin.parent.mkdir(parents=True, exist_ok=True)
    over_plugin = {"RINGCOMM_NET": f"plugin:{plugin}"}
    return [
        Command("cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-DABI=12",
                "tests/net_plugin/net_plugin.c", "-o", str(plugin)),
        cargo("test", "--no-fail-fast", *tests_named(*OVER_NETWORKS, "network_failures"), env=over_ucx),
        # A plugin's connection that is given up half-way keeps its descriptor: there is no call that ends it.
        cargo("test", "--no-fail-fast", *tests_named(*OVER_NETWORKS), env=over_plugin),
        cargo("test", *tests_named("engines"), env={**ucx(), "RINGCOMM_ROUNDS": "200"}),
    ]


def loom():
    """Lock-free code under every interleaving that the memory model allows."""
    return [cargo("test", "-p", "ringcomm-models")]


# What the sanitizers run: threads, memory that they share, sockets, and the C interface over all of it. Pure code and
# the arithmetic's matrices, an hour under a sanitizer, have nothing for them to see; killed processes report nothing.
PURE = ["algorithm::", "device::cuda::", "device::host::", "plan::", "simulation", "sim::",
        "agreement::", "gossip", "rendezvous::", "tcp::handshake::"]
# Counts the process's mappings, among which a sanitizer has its own.
MAPPINGS = ["mirrors_of_many_ranks"]
CONCURRENT = ["bootstrap", "buffer_visits", "fifo", "hosts", "meeting", "messages", "mismatches",
              "splits", "stream", "transport_leaks", "transport_memory", "transport_network"]
# Those of them whose code has memory of its own making: slots, windows, messages, what is mapped.
HOLDING = ["buffer_visits", "fifo", "hosts", "messages", "stream", "transport_leaks",
           "transport_memory", "transport_network"]
# Most of a minute each under a sanitizer: matrices of long vectors, and processes that are killed.
LONG = ["every_algorithm_cuts_long_vectors", "that_disagree_on_long_vectors",
        "dies_at_any_point_of_a_split"]
# Looks at a buffer while a call writes it: a race of the test's own. Panics of threads meet in the harness's store of
# what a test prints, whose lock no sanitizer sees.
LOOKS_ON = "what_runs_is_over_when_a_broken_communicator_is_gone"
PANICS = "the_suite_finds_what_breaks_the_contract"
COLLECTIVES = ["barrier", "two_threads", "several_communicators", "long_vectors", "sixteen"]


def sanitized(kind, flags, slower, options, concurrent):
    """The suites with memory and threads in them, under a sanitizer with which code takes up to so
    many times as long."""
    env = {"RUSTC_BOOTSTRAP": "1", "RUSTFLAGS": f"-Zsanitizer={kind} {flags}",
           "RINGCOMM_SLOWER": slower, **options}

    def made(verb, *words):
        return cargo(verb, "--target", HOST, *words, target=kind, env=env)

    def tests(*words):
        return made("test", "--no-fail-fast", *words)
    return [
        tests("--lib", "--", *(word for name in PURE + MAPPINGS for word in ("--skip", name))),
        tests(*tests_named(*concurrent), "--", *(word for name in [*LONG, PANICS]
                                               for word in ("--skip", name))),
        tests(*tests_named("capi"), "--", "--skip", LOOKS_ON),
        tests(*tests_named("collectives"), "--", *COLLECTIVES),
        # Its tests' threads meet at barriers of std, which ThreadSanitizer does not see.
        tests("-p", "ringcomm-nccl") if kind == "address" else made("build", "-p", "ringcomm-nccl"),
    ]


def nccl_examples(kind, folder, **more):
    """The examples of NCCL's interface, with the library that a suite has built."""
    library = {"RINGCOMM_LIBRARY_DIR": str(TARGET / folder), "PYTHON": with_pip()}
    return where_there(f"{kind}-nccl-examples", ["gcc"] if kind == "plain" else ["gcc", "nm"],
                       Command("scripts/run-nccl-examples", kind, env={**library, **more}))


def tsan():
    """ThreadSanitizer."""
    # The standard library comes compiled, without what ThreadSanitizer needs to see: the fence in an Arc's last drop
    # (most such drops are inlined, so its file is named), the state of a Once, the lock in a channel of std (tests and
    # harness use them).
    unseen = ["library/alloc/src/sync.rs",
              "library/std/src/sync/once_lock.rs", "library/std/src/sys/sync/once/",
              "library/std/src/sync/mpmc/", "CompletedTest"]
    suppressions = TARGET / "tsan-suppressions"
    suppressions.write_text("".join(f"race:{name}\n" for name in unseen))
    options = {"TSAN_OPTIONS": f"suppressions={suppressions} die_after_fork=0"}
    return [*sanitized("thread", "-Cunsafe-allow-abi-mismatch=sanitizer", "15", options, CONCURRENT),
            nccl_examples("tsan", f"thread/{HOST}/debug/deps", **options)]


def asan():
    """AddressSanitizer."""
    # Tables of handles are static, buffers of calls that are never made have no end; tests give theirs up for ever.
    suppressions = TARGET / "lsan-suppressions"
    suppressions.write_text("leak:src/ffi/handle_tests.rs\nleak:tests/capi/ends.rs\n")
    options = f"suppressions={suppressions} print_suppressions=0"
    env = {"ASAN_OPTIONS": "detect_leaks=1", "LSAN_OPTIONS": options}
    # The tests have built this library, too.
    library = {"RINGCOMM_LIBRARY_DIR": str(TARGET / "address" / HOST / "debug/deps"), **env}
    examples = Command("scripts/run-examples", "asan", env=library)
    return [*sanitized("address", "", "3", env, HOLDING),
            where_there("asan-examples", ["gcc", "g++", "nm"], examples),
            nccl_examples("asan", f"address/{HOST}/debug/deps", **env)]


def aarch64():
    """The library and its arithmetic for AArch64, compiled there and run under an emulator."""
    need("gcc")
    try:
        tools = cross.tools(TARGET / "aarch64-tools")
    except cross.Missing as reason:
        raise Missing(str(reason)) from reason
    env = {**tools, "RUSTFLAGS": "-Dwarnings", "CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_INCREMENTAL": "0"}

    def emulated(verb, *words, log=None):
        # The emulator logs each block that it translates, which it does when it first runs it.
        more = {"QEMU_LOG": "in_asm", "QEMU_LOG_FILENAME": str(log)} if log else {}
        return cargo(verb, "--target", cross.TARGET, *words, target="aarch64", env={**env, **more})

    def ran(log, *instructions):
        return Command(sys.executable, "scripts/aarch64.py", str(log), *instructions)
    arithmetic, library = LOGS / "aarch64-arithmetic.txt", LOGS / "aarch64-library.txt"
    for log in (arithmetic, library):
        log.unlink(missing_ok=True)
    # Every type and operation, on the vectors that are chosen unasked.
    perf = ["all_reduce", "--datatype", "all", "--op", "all", "--nthreads", "2", "--minbytes", "1K",
            "--maxbytes", "1K", "--iters", "1", "--warmup_iters", "0", "--probe", "0"]
    conversions = ["fcvtl.4s", "fcvtl2.4s", "fcvtn.4h", "fcvtn2.8h"]
    return [
        emulated("check", "--lib", "--bins"),
        emulated("test", "--no-fail-fast", "--test", "arithmetic", log=arithmetic),
        ran(arithmetic, *conversions, "fmin.4s", "fmax.2d", "umlal.2d", "stnp"),
        emulated("run", "--quiet", "--bin", "ring-perf", "--", *perf, log=library),
        ran(library, *conversions, "fmin.4s", "fmax.2d", "umlal.2d"),
    ]


def with_pip():
    """An interpreter with pip, which Debian's own may lack."""
    return str(venv("libclang==18.1.1") / "bin/python")


def abi():
    """Header drift, layouts, prototypes, exported symbols; NCCL's headers and the library in its place."""
    need("nm", "readelf")
    env = {"RINGCOMM_LIBRARY": str(TARGET / "release/libringcomm.so"),
           "RINGCOMM_NCCL_LIBRARY": str(TARGET / "release/libringcomm_nccl.so"),
           "NCCL_HEADERS": str(TARGET / "nccl-headers"), **libclang()}
    lacking = []
    try:
        env["HEADERS_OF_UCX"] = ucx()["HEADERS_OF_UCX"]
    except Missing as reason:
        lacking.append(Lacking("ucx-header", reason))
    return [
        *lacking,
        Together(cargo("build", "--release", "-p", "ringcomm", "-p", "ringcomm-nccl"),
                 cargo("build", "--profile", "test", "--tests", "-p", "ringcomm-abi")),
        Command(with_pip(), "scripts/nccl_headers.py"),
        Command(with_pip(), "scripts/test_nccl_headers.py"),
        cargo("test", "--no-fail-fast", "-p", "ringcomm-abi", env=env),
    ]


def nccl():
    """NCCL's interface on host memory: its own tests, and C programs compiled against NVIDIA's header."""
    return [
        cargo("build", "--release", "-p", "ringcomm-nccl"),
        cargo("test", "--no-fail-fast", "-p", "ringcomm-nccl", env={"RINGCOMM_TIMEOUT_MS": "60000"}),
        nccl_examples("plain", "release"),
        Command(sys.executable, "scripts/nccl_clients.py", "--check", str(TARGET / "release/libringcomm_nccl.so")),
    ]


def examples():
    """The README's first command, the C tutorial, C and C++ examples and the C++ wrapper's tests, also under TSan."""
    return [cargo("build", "--release"), Command("scripts/first-command"),
            where_there("tutorial", ["gcc"], Command("scripts/run-tutorial")),
            where_there("examples", ["gcc", "g++"], Command("scripts/run-examples", "plain", "tsan"))]


def install():
    """What `make install` puts in place, used through pkg-config, through CMake and in NCCL's place."""
    need("gcc", "g++", "make", "pkg-config")
    return [cargo("build", "--release"), cargo("build", "--release", "-p", "ringcomm-nccl"),
            Command("scripts/test-install", env=cmake())]


def namespaces():
    """Ranks on four hosts of network namespaces, over wires that lose, reset, slow and cut."""
    if os.geteuid() != 0:
        raise Missing("only root makes network namespaces")
    need("ip", "tc", "nft", "unshare")
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if made.returncode:
        raise Missing(f"no network namespaces here ({made.stderr.strip()})")
    return [cargo("test", "--test", "namespaces", "--", "--nocapture", "--test-threads=1")]


def on_fake_driver(devices, queues, **more):
    """Variables under which a process finds the driver without a GPU, with so many devices and
    hardware queues each; 0 is a queue for every stream, so that none is held up by another."""
    place = TARGET / "fakecuda"
    place.mkdir(parents=True, exist_ok=True)
    driver = place / "libcuda.so.1"
    driver.unlink(missing_ok=True)
    driver.symlink_to("../debug/libfakecuda.so")
    # The driver takes any image for its own kernels.
    (place / "image").write_text("an image\n")
    return {"LD_LIBRARY_PATH": str(place), "FAKECUDA_KERNELS": str(place / "kernels.so"),
            "RINGCOMM_FATBIN": str(place / "image"), "FAKECUDA_DEVICES": str(devices),
            "FAKECUDA_QUEUES": str(queues), **more}


def build_fake_driver():
    """What makes the driver without a GPU, and its kernels."""
    return [
        cargo("build", "-p", "ringcomm-fakecuda"),
        Command("kernels/build-host", str(TARGET / "fakecuda/kernels.so")),
    ]


def on_devices(tools, tests, devices, library, **more):
    """Tests of the Python package with an environment's Python, on the driver without a GPU."""
    env = {"PYTHONPATH": str(ROOT / "python"), "RINGCOMM_LIBRARY": str(TARGET / library), **more}
    return Command(str(tools / "bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider",
                   f"python/tests/{tests}", env=on_fake_driver(devices, 0, **env))


def cuda():
    """Ranks on CUDA devices, on a driver without a GPU and with the kernels compiled for the host."""
    need("g++")
    tools = venv("pytest<10", "numpy<3")

    def ran(devices, queues, *filters, **more):
        # More threads than cores: many tests wait for a deadline.
        return cargo("test", "--test", "cuda", "--", "--test-threads", "8", *filters,
                     env=on_fake_driver(devices, queues, **more))
    # What a driver without an entry point or with an error says does not depend on devices, nor do
    # failures of what several share on more than two.
    apart = ["--skip", "gate::", "--skip", "failures::", "--skip", "codes::"]
    check = TARGET / "gpu-check-dry"
    shutil.rmtree(check, ignore_errors=True)
    check.mkdir(parents=True)
    # Without the tests, which have run by then.
    for name, place in [("ring-perf", "debug/ring-perf"), ("ringrun", "debug/ringrun"),
                        ("libringcomm_nccl.so", "debug/libringcomm_nccl.so"),
                        ("kernels-host.so", "fakecuda/kernels.so"),
                        ("ringcomm.fatbin", "fakecuda/image")]:
        (check / name).symlink_to(TARGET / place)
    library = "debug/libringcomm.so"
    nccl = {"RINGCOMM_NCCL_LIBRARY": str(TARGET / "debug/libringcomm_nccl.so")}
    return [
        *build_fake_driver(),
        cargo("build", "--lib", "--bin", "ring-perf", "--bin", "ringrun"),
        cargo("build", "-p", "ringcomm-nccl"),
        ran(1, 8),
        ran(2, 1, *apart),
        ran(8, 32, *apart, "--skip", "ends_in_words"),
        ran(1, 1, "pieces::", "deaths::", "closing::"),
        ran(2, 8, "calls::ranks_on", "streams::", "processes::processes_on", FAKECUDA_PEERS="0"),
        # Streams that run late show what nobody waits for.
        ran(1, 1, "calls::several", "streams::", "capture::", FAKECUDA_DELAY_US="30"),
        Command("scripts/gpu-check", "--dry", str(check), env=on_fake_driver(1, 8)),
        Command(sys.executable, "scripts/test_gpu_check.py"),
        on_devices(tools, "cuda", 1, library, **nccl),
        on_devices(tools, "cuda", 2, library, **nccl),
    ]


def peers():
    """The comparison with other libraries: its parsers and figures, not its measurements."""
    return [Command(sys.executable, "test_peers.py", cwd=ROOT / "benches/peers")]


def package_venv():
    """The virtual environment in which the Python package is built, checked and tested."""
    return venv("numpy<3", "ml_dtypes<1", "jax<1", "pytest<10", "mypy<3", "mkdocs<2")


def python():
    """The Python package: its wheel, built and installed; its tests, types and documentation."""
    return [Command("scripts/test-python", str(package_venv()))]


def pythons():
    """The wheel under every other Python that is here."""
    return [Command("scripts/build-wheel", str(package_venv())),
            Command(sys.executable, "scripts/python_versions.py"),
            Command(sys.executable, "scripts/test_python_versions.py")]


def torch_tests():
    """What runs the tests of the backend: an interpreter, and the variables for it."""
    env = {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1",
           "RINGCOMM_LIBRARY": str(TARGET / "release/libringcomm.so")}
    return str(torch_venv() / "bin/python"), env


TORCH_DOCS = "python/tests/torch/test_docs.py"


def torch():
    """The tests of the backend of torch.distributed; the programs of its documents run in the suite `distributed`."""
    interpreter, env = torch_tests()
    return [cargo("build", "--release"), cargo("build", "--release", "-p", "ringcomm-nccl"),
            Command(interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", "python/tests/torch",
                    f"--ignore={TORCH_DOCS}", env=env)]


def distributed():
    """Its types and documents, PyTorch's and torchft's own tests of a backend, CUDA tensors without a GPU."""
    interpreter, env = torch_tests()
    need("g++")
    return [
        cargo("build", "--release"),
        # Where the types of torch's own classes are known.
        Command(interpreter, "-m", "mypy", "--config-file=", "--strict", "--cache-dir",
                str(TARGET / "mypy-cache"), "-p", "ringcomm.torch", "-p", "ringcomm.horovod.torch",
                "-p", "ringcomm.apex", cwd=ROOT / "python"),
        Command(interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", TORCH_DOCS, env=env),
        *(Command(interpreter, "python/tests/torch/distributed_suite.py", "--ranks", ranks, env=env)
          for ranks in ("2", "3", "4")),
        Command(interpreter, "python/tests/torch/torchft_suite.py", env=env),
        *build_fake_driver(),
        on_devices(torch_venv(), "cuda_torch", 2, "release/libringcomm.so"),
    ]


def training():
    """The tools for training, examples, Horovod's and apex's interfaces; TensorFlow's files apart, as they fork."""
    env = {"RINGCOMM_LIBRARY": str(TARGET / "release/libringcomm.so"), "PYTHONPATH": str(ROOT / "python")}
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return [
        cargo("build", "--release"),
        Command(str(torch_venv() / "bin/python"), *tests, "python/tests/train", env=env),
        *(Command(str(tensorflow_venv() / "bin/python"), *tests, str(file), env=env)
          for file in sorted((ROOT / "python/tests/tensorflow").glob("test_*.py"))),
    ]


ON_LIBRARY_PATH = {"LD_LIBRARY_PATH": str(TARGET / "release/nccl")}


def client_tests(place, name, **more):
    """The tests of an unmodified client of NCCL, by an environment's Python, with the library in NCCL's place."""
    # Several ranks share a core: what NumPy does with threads would be in their way.
    env = {"RINGCOMM_NCCL_LIBRARY": str(TARGET / "release/libringcomm_nccl.so"),
           "NCCL_CLIENTS": str(TARGET / "nccl-clients"), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"python/tests/nccl/test_{name}.py"]
    return Command(str(place / "bin/python"), *words, env={**env, **more})


def nccl_clients():
    """vLLM's and SGLang's wrappers, nccl4py, programs that are linked with NVIDIA's library, CuPy and PyTorch."""
    need("gcc", "readelf")
    tools = nccl_venv()
    for package in ("vllm", "sglang"):
        wheel_files(package, rf"{package}/(.*/pynccl_wrapper|utils/nccl)\.py")
    return [
        cargo("build", "--release", "-p", "ringcomm-nccl"),
        client_tests(tools, "wrappers", **ON_LIBRARY_PATH),
        # Where NVIDIA's library is installed, too, as here, only this comes before it.
        client_tests(tools, "nccl4py", LD_PRELOAD=str(TARGET / "release/libringcomm_nccl.so")),
        client_tests(tools, "linked"),
        where_made("cupy-14", lambda: client_tests(cupy_venv(14), "cupy", **ON_LIBRARY_PATH)),
        client_tests(tools, "torch", TORCH_PYTHON=str(torch_venv() / "bin/python")),
    ]


def nccl_older():
    """The same with older releases."""
    older = {"cupy-13": lambda: client_tests(cupy_venv(13), "cupy", **ON_LIBRARY_PATH), "torch-2.5": lambda: client_tests(
        nccl_venv(), "torch", TORCH_PYTHON=str(old_torch_venv() / "bin/python"))}
    return [cargo("build", "--release", "-p", "ringcomm-nccl"), *(where_made(*part) for part in older.items())]


def kernels():
    """The GPU kernels: compiled for devices and looked at, compiled for the host and run."""
    need("g++")
    nvcc()
    # The first release of these wheels that has them; they read what older compilers write.
    tools = venv("nvidia-cuda-cuobjdump==13.2.78", "nvidia-cuda-nvdisasm==13.2.78")
    path = {"PATH": f"{pinned(tools, 'cuobjdump').parent}:{os.environ['PATH']}"}
    return [
        cargo("test", "--test", "kernels"),
        Command("scripts/kernel-protocol"),
        Command(sys.executable, "scripts/sass.py", env=path),
        Command(sys.executable, "scripts/test_sass.py"),
        Command(sys.executable, "scripts/test_kernel_build.py"),
    ]


def fuzz():
    """Every parser of what others say, for a minute in all; scripts/fuzz goes on for longer."""
    # libFuzzer is compiled from its C++ sources.
    need("g++")
    return [Command("scripts/fuzz")]


# What `scripts/test` runs.
USUAL = [unit, integration, kernels, loom, abi, nccl, examples, install, python, torch, nccl_clients]
# What `scripts/test all` runs too.
LONG_ONES = [style, tsan, asan, aarch64, fuzz, pythons, distributed, training, peers, namespaces, cuda,
             nccl_older, networks]
SUITES = [*USUAL, *LONG_ONES]
