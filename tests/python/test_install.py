"""Installation: `cmake --install`, external projects, and `pip install .`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from installation import run_command, variables_without_checkout

from isthmus import layout

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "install" / "project"
PLUGINS = {"nccl", "rccl"}  # always built


def relative_files(folder: Path) -> set[Path]:
    return {file.relative_to(folder) for file in folder.rglob("*.*") if file.is_file()}


def sycl_engines(folder: Path) -> set[str]:
    """Returns the engines of libisthmus_ggml.so for SYCL runtimes."""
    return {file.name for file in folder.glob("libisthmus_ggml_sycl[0-9]*.so")}


def library_folder(prefix: Path) -> Path:
    """Returns the folder of libisthmus.so: lib, or lib64 on some systems."""
    return next(prefix.glob("lib*/libisthmus.so")).parent


def assert_no_build_paths(files: Iterable[Path]) -> None:
    """No file may contain a folder of this machine, or a path of a source file relative to the build folder."""
    folders = "|".join(re.escape(path) for path in (str(ROOT), f"{Path.home()}/", "pip-build-env"))
    forbidden = re.compile(rf"{folders}|\.\./src/(?!libsodium)".encode())
    for file in files:
        found = forbidden.search(file.read_bytes())
        assert found is None, f"{file} contains {found[0]!r}"


def test_installation_contains_all_files(prefix: Path) -> None:
    lib = library_folder(prefix)
    assert {file.name for file in lib.glob("libisthmus.so*")} >= {"libisthmus.so", "libisthmus.so.0"}
    assert (lib / "libisthmus_ggml.so").exists()
    assert sycl_engines(lib) == sycl_engines(Path(layout.library_folder()))
    assert {f"libisthmus_{name}.so" for name in PLUGINS} <= {file.name for file in (lib / "isthmus").iterdir()}
    assert relative_files(prefix / "include") == relative_files(ROOT / "include")
    assert_no_build_paths([*lib.glob("*.so*"), *(lib / "isthmus").iterdir()])


def test_no_allocation_crosses_libraries(prefix: Path) -> None:
    """An object with its own C++ runtime needs no C++ library and exports C functions only."""
    lib = library_folder(prefix)
    checked = set()
    for file in [*lib.glob("*.so"), *(lib / "isthmus").iterdir()]:
        needed = re.findall(r"NEEDED.*\[(.*)\]", run_command("readelf", "-d", file))
        assert not [name for name in needed if name.startswith("libfmt")], file
        if any(name.startswith("libstdc++") for name in needed):
            continue  # uses the operators of the program throughout
        checked.add(file.name)
        symbols = re.findall(r"(\w) (_Z\S+)", run_command("nm", "-D", file))
        others = [name for _, name in symbols if not name.startswith("_ZGTt")]  # of transactional memory, weak
        assert not others, f"{file}: {others}"
    assert checked >= {"libisthmus.so", "libisthmus_mpi_mpich.so", "libisthmus_nccl_engine.so"}


def test_external_projects_build_and_run(prefix: Path, tmp_path: Path) -> None:
    mpi = Path(sys.prefix) / "bin" / "mpicxx"
    options = [f"-Disthmus_ROOT={prefix}", "-DCMAKE_BUILD_TYPE=Debug"]
    if mpi.exists():
        options += ["-DWITH_MPI=ON", f"-DMPI_CXX_COMPILER={mpi}"]
    sycl = Path(sys.prefix) / "lib" / "libsycl.so"
    if sycl.exists():
        options += [f"-DSYCL_INCLUDE={sys.prefix}/include", f"-DSYCL_LIBRARY={sycl}"]
    run_command("cmake", "-S", SOURCES, "-B", tmp_path, "-G", "Ninja", *options)
    run_command("cmake", "--build", tmp_path)
    isolated_variables = {"ISTHMUS_CONFIG": "none", "ISTHMUS_PROFILE": "none"}
    assert run_command(tmp_path / "use_core", **isolated_variables) == "22 22\n"
    if mpi.exists():
        assert (
            run_command(mpi.with_name("mpiexec"), "-n", "2", tmp_path / "use_mpi", **isolated_variables)
            == "2\n2\n"
        )
    if sycl.exists():
        opencl = f"{sys.prefix}/lib/libintelocl.so"
        variables = {"OCL_ICD_FILENAMES": opencl, "LD_LIBRARY_PATH": f"{sys.prefix}/lib"}
        assert run_command(tmp_path / "use_sycl", **isolated_variables, **variables) == "7\n"
    log_output = run_command(
        tmp_path / "use_core", **isolated_variables, ISTHMUS_PLUGIN_PATH=str(tmp_path), ISTHMUS_LOG="info"
    )
    assert "22 22" in log_output


def test_example_plugin_passes_conformance(prefix: Path, tmp_path: Path) -> None:
    """The plugin is built with the installation only, and tested by conformance in threads and processes."""
    run_command(
        "cmake", "-S", ROOT / "examples" / "plugin", "-B", tmp_path, "-G", "Ninja", f"-Disthmus_ROOT={prefix}"
    )
    run_command("cmake", "--build", tmp_path)
    symbols = run_command("nm", "-D", "--defined-only", tmp_path / "libmailbox.so")
    assert [line.split()[-1] for line in symbols.splitlines() if " T " in line] == ["isthmus_backend_v1"]
    conformance = Path(layout.build_folder() or "") / "bin" / "conformance"
    if not conformance.exists():
        pytest.skip("the conformance suite is not built")
    variables = {"ISTHMUS_PLUGIN_PATH": str(tmp_path), "ISTHMUS_CONFIG": "none", "ISTHMUS_PROFILE": "none"}
    arguments = ["--ranks", "3", "--thinning", "12", "--samples", "16", "--engine", "mailbox"]
    for topology in ("threads", "processes"):
        assert "mailbox" in run_command(conformance, "--topology", topology, *arguments, **variables)


def test_unknown_cmake_component_is_named(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(p C)\nfind_package(isthmus REQUIRED COMPONENTS cuda)\n"
    )
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "b", "-G", "Ninja", f"-Disthmus_ROOT={prefix}"]
    completed = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert completed.returncode != 0
    assert "isthmus: unknown component cuda" in completed.stderr


def test_pkg_config_flags_build_a_program(prefix: Path, tmp_path: Path) -> None:
    lib = library_folder(prefix)
    flags = run_command(
        "pkg-config", "--cflags", "--libs", "isthmus", PKG_CONFIG_PATH=str(lib / "pkgconfig")
    ).split()
    run_command("gcc", SOURCES / "use_core.c", *flags, "-o", tmp_path / "p")
    assert run_command(tmp_path / "p", ISTHMUS_CONFIG="none", ISTHMUS_PROFILE="none") == "22 22\n"
    version = run_command(
        "pkg-config", "--modversion", "isthmus", PKG_CONFIG_PATH=str(lib / "pkgconfig")
    ).strip()
    assert version == run_command(sys.executable, "-c", "import isthmus; print(isthmus.__version__)").strip()


def test_exported_symbols_match_the_list(prefix: Path) -> None:
    """Removal of a symbol breaks programs. Change the list only by additions, or with a new SONAME."""
    listed = (SOURCES / "libisthmus.symbols").read_text().split()
    table = run_command("nm", "-D", "--defined-only", library_folder(prefix) / "libisthmus.so.0").splitlines()
    assert sorted(line.split()[-1] for line in table) == listed


def site_packages(python: Path) -> Path:
    return Path(run_command(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip())


@pytest.mark.timeout(900)  # compiles the core again without a compiler cache
def test_wheel_works_without_checkout(python: Path, tmp_path: Path) -> None:
    """The first steps of a user after `pip install .`."""
    site = site_packages(python)
    plugins = {file.name for file in (site / "isthmus" / "isthmus").iterdir()}
    assert {f"libisthmus_{name}.so" for name in PLUGINS} <= plugins
    assert (site / "isthmus" / "libisthmus_ggml.so").exists()
    assert sycl_engines(site / "isthmus") == sycl_engines(Path(layout.library_folder()))
    program = "import isthmus, numpy as np; a, b = isthmus.Communicator.create_all(2)\nwith isthmus.group():\n"
    program += "  x, y = a.allreduce(np.ones(3)), b.allreduce(np.ones(3))\nprint(x.tolist(), isthmus.__file__)"
    out = run_command(python, "-c", program, ISTHMUS_CONFIG="none", ISTHMUS_PROFILE="none")
    assert out.startswith("[2.0, 2.0, 2.0]")
    assert str(site) in out
    assert "shm" in run_command(python, "-m", "isthmus", "info")
    checks = ["--only", "package", "--only", "ranks", "--only", "backends", "--only", "plug-ins"]
    assert "failed" not in run_command(python, "-m", "isthmus", "doctor", *checks)
    # The missing program must be reported before a missing MPI.
    for words in (["demo"], ["bench", "allreduce", "--ranks", "2"], ["tune", "--dry-run"]):
        command = [str(python), "-m", "isthmus", *words]
        variables = variables_without_checkout()
        measured = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env=variables
        )
        assert measured.returncode == 3 and "run make build in a checkout" in measured.stderr, measured
    package = run_command(python, "-m", "isthmus.layout", "cmake").strip()
    run_command("cmake", "-S", SOURCES, "-B", tmp_path / "b", "-G", "Ninja", f"-Disthmus_DIR={package}")
    run_command("cmake", "--build", tmp_path / "b", "--target", "use_core")
    assert run_command(tmp_path / "b" / "use_core", ISTHMUS_CONFIG="none", ISTHMUS_PROFILE="none") == "22 22\n"


def test_wheel_serves_all_python_versions(wheel: Path) -> None:
    """The modules use the stable ABI, so that one wheel serves CPython 3.10 and newer."""
    assert wheel.name.split("-")[2:4] == ["cp310", "abi3"]
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if re.fullmatch(r"isthmus/_\w+\..*so", name)} == {
        "isthmus/_isthmus.abi3.so",
        "isthmus/_mpi.abi3.so",
    }


def test_wheel_requires_few_packages(wheel: Path) -> None:
    """Each further package makes `pip install` slower, and can conflict with those of the user."""
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    requirements = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", archive.read(metadata).decode(), re.M)
    assert sorted(requirements) == ["click", "nanobind-backend", "numpy", "rich"]


def test_wheel_contains_no_build_paths(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    assert_no_build_paths(file for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize("linker", ["bfd", "gold", "lld"])
def test_wheel_links_c_and_cpp_programs(python: Path, tmp_path: Path, linker: str) -> None:
    """With the flags of pkg-config, and with plain -listhmus."""
    if shutil.which(f"ld.{linker}") is None:
        pytest.skip(f"ld.{linker} is not installed")
    lib, include, pkgconfig = (
        run_command(python, "-m", "isthmus.layout", name).strip() for name in ("lib", "include", "pkgconfig")
    )
    described = run_command("pkg-config", "--cflags", "--libs", "isthmus", PKG_CONFIG_PATH=pkgconfig).split()
    assert described == [f"-I{include}", f"-L{lib}", f"-Wl,-rpath,{lib}", "-listhmus"]
    plain = [f"-I{include}", f"-L{lib}", f"-Wl,-rpath,{lib}", "-listhmus"]
    for compiler in (["gcc"], ["g++", "-std=c++20", "-xc++"]):
        for flags in (described, plain):
            program = tmp_path / "program"
            options = ["-xnone", *flags, f"-fuse-ld={linker}", "-o", program]
            run_command(*compiler, SOURCES / "use_core.c", *options)
            assert "[libisthmus.so.0]" in run_command("readelf", "-d", program)
            assert run_command(program, ISTHMUS_CONFIG="none", ISTHMUS_PROFILE="none") == "22 22\n"


@pytest.mark.parametrize(("requested", "is_wanted"), [("OFF", False), ("ON", True)])
def test_build_requires_cuda_compiler_only_for_kernels(requested: str, is_wanted: bool) -> None:
    program = "import build_backend as b, sys\n"
    program += "print(*b.get_requires_for_build_wheel({'cmake.define.ISTHMUS_P2P': sys.argv[1]}), sep='\\n')"
    folder = str(ROOT / "python" / "dev")
    completed = subprocess.run(
        [sys.executable, "-c", program, requested],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("nvidia-cuda-nvcc==" in completed.stdout) == is_wanted
    assert "#" not in completed.stdout


@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="requires PyTorch")
def test_wheel_compiles_pytorch_extension_once(
    python: Path, home: Path, first_torch_import: str, tmp_path: Path
) -> None:
    """isthmus.torch of the wheel is compiled at the first import and reused at the second."""
    assert "compiling for PyTorch" in first_torch_import
    program = "import torch.distributed as dist, torch, isthmus.torch, sys\n"
    program += "dist.init_process_group('cpu:isthmus', 'file://' + sys.argv[1], rank=0, world_size=1)\n"
    program += "dist.all_reduce(torch.ones(4)); print(isthmus.torch.report()[0].path, isthmus.torch.__file__)\n"
    program += "dist.destroy_process_group()"
    command = [str(python), "-c", program, str(tmp_path / "store")]
    variables = variables_without_checkout(HOME=str(home), ISTHMUS_CONFIG="none")
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith("shm:") and str(site_packages(python)) in completed.stdout
    assert "compiling for PyTorch" not in completed.stderr


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="requires PyTorch")
def test_extension_of_release_wheel_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from isthmus.torch import _compile

    monkeypatch.setattr(layout, "__file__", str(tmp_path / "layout.py"))
    monkeypatch.setattr(_compile, "_run_builder", lambda *arguments: pytest.fail("the extension was compiled"))
    version = torch.__version__.split("+")[0]
    packaged = tmp_path / "torch" / "_compiled" / f"torch-{version}{sysconfig.get_config_var('EXT_SUFFIX')}"
    packaged.parent.mkdir(parents=True)
    packaged.touch()
    assert _compile._compiled() == packaged


@pytest.mark.parametrize("version", ["2.13.0", None])
def test_import_without_pytorch_names_the_command(
    version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "__file__", str(tmp_path / "layout.py"))
    monkeypatch.setattr(layout, "checkout", lambda: None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch" or "isthmus.torch" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    if version:
        packaged = tmp_path / "torch" / "_compiled" / f"torch-{version}{sysconfig.get_config_var('EXT_SUFFIX')}"
        packaged.parent.mkdir(parents=True)
        packaged.touch()
    command = f"run pip install torch=={version}," if version else r"run pip install 'isthmus\[torch\]'"
    expected = rf"package torch, extra isthmus\[torch\].* is not installed for {sys.executable}; {command}"
    with pytest.raises(ModuleNotFoundError, match=expected):
        importlib.import_module("isthmus.torch")
