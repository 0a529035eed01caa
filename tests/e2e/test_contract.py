"""A CUDA library built from other headers than the program is refused, whatever changed in them, and the build
notices each change. The library here is the fake device (tests/service/fake_device.c), compiled from a copy
of the tree with one header changed."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import worker_process as w

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import tiny_checkpoint  # noqa: E402

ROOT, BUILD = w.ROOT, w.FAKE.parents[1]
WORKER = BUILD / "worker/ctworker"
FOLDERS = ("base", "kernels", "ipc", "worker", "examples", "cmake")


def copy_of_tree(folder):
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "CMakeLists.txt", folder)
    (folder / "tests/service").mkdir(parents=True)
    for path in (ROOT / "tests/service").glob("fake_device*"):
        shutil.copy(path, folder / "tests/service")
    return folder


def change(tree, header, old, new):
    text = (tree / header).read_text()
    assert text.count(old) == 1, (header, old)
    (tree / header).write_text(text.replace(old, new))


def contract_in(header):
    return re.search(r'CTW_CONTRACT "([0-9a-f]{16})"', header.read_text())[1]


class Library(unittest.TestCase):
    """A library built from another tree, loaded by the program of this tree."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ctw-")
        self.addCleanup(folder.cleanup)
        self.tree, self.model = copy_of_tree(Path(folder.name, "tree")), Path(folder.name, "model")
        tiny_checkpoint.write(self.model, "llama", "bf16", seed=1)

    def build(self):
        header = self.tree / "generated/kernels/contract.h"
        subprocess.run(["cmake", f"-DROOT={self.tree}", f"-DOUT={header}", "-P",
                        self.tree / "cmake/CtwContract.cmake"], check=True)
        library = self.tree / "libfake.so"
        subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-fvisibility=hidden",
                        f"-I{self.tree}", f"-I{header.parents[1]}", "-o", library,
                        *(self.tree / "tests/service").glob("fake_device*.c"), BUILD / "kernels/libctw_kernels.a",
                        BUILD / "base/libctw_base.a", "-lm", "-ldl", "-lpthread"], check=True)
        return library, contract_in(header)

    def score(self, library, backend):
        return subprocess.run(
            [WORKER, "score", "--model", self.model, "--backend", backend], text=True,
            input='{"id": 0, "tokens": [1, 2, 3]}\n', capture_output=True, check=False, timeout=60,
            env=os.environ | {"CTWORKER_CUDA_LIBRARY": str(library)})

    def refused(self):
        library, found = self.build()
        own = contract_in(BUILD / "generated/kernels/contract.h")
        self.assertNotEqual(found, own)
        why = f"no GPU: {library} has the contract {found}, this program has {own}: "
        done = self.score(library, "cuda")
        self.assertEqual((done.returncode, done.stdout), (65, ""), done.stderr)
        self.assertIn(why + "install ctworker and ctworker-cuda13 of one version, or build both from one source "
                      "tree and install them together (--backend cpu needs no GPU)", done.stderr)
        done = self.score(library, "auto")  # uses the CPU, and says why
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, "cpu-.*" + re.escape(why))

    def test_another_copy_of_the_same_tree_is_taken(self):
        library, found = self.build()
        self.assertEqual(found, contract_in(BUILD / "generated/kernels/contract.h"))
        done = self.score(library, "cuda")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("fake GPU 0", done.stderr)

    def test_two_structs_that_have_grown(self):
        change(self.tree, "kernels/backend.h", "int64_t n_vocab, head_k;", "int64_t more, n_vocab, head_k;")
        change(self.tree, "kernels/operations.h", "    float norm_eps;", "    int64_t more; float norm_eps;")
        self.refused()

    def test_a_format_before_others(self):
        change(self.tree, "kernels/formats/list.h", "    X(pack_quantized) ", "    X(pack_quantised_too) X(pack_quantized) ")
        self.refused()

    def test_another_decoder(self):
        decode = self.tree / "kernels/formats/nvfp4/decode.h"
        decode.write_text(decode.read_text() + "/* rounds once more */\n")
        self.refused()


class Build(unittest.TestCase):
    def test_every_change_is_noticed(self):
        with tempfile.TemporaryDirectory(prefix="ctw-") as d:
            tree, build = copy_of_tree(Path(d, "tree")), Path(d, "build")
            header = build / "generated/kernels/contract.h"
            subprocess.run(["cmake", "-S", tree, "-B", build, "-DCTW_CUDA=OFF", "-DCTW_TESTS=OFF"],
                           check=True, capture_output=True)

            def made():
                done = subprocess.run(["cmake", "--build", build, "--target", "ctw_contract"], text=True,
                                      capture_output=True, check=False)
                return done.returncode, done.stdout + done.stderr

            self.assertEqual(made()[0], 0)
            seen = [contract_in(header)]
            for name in ("kernels/operations.h", "kernels/dtype.h", "kernels/formats/format.h",
                         "kernels/formats/nvfp4/decode.h", "base/status.h"):
                (tree / name).write_text((tree / name).read_text() + "\n")
                self.assertEqual(made()[0], 0)
                seen.append(contract_in(header))
            (tree / "kernels/formats/nvfp4/tables.h").write_text("")
            self.assertEqual(made()[0], 0)
            seen.append(contract_in(header))
            self.assertEqual(len(set(seen)), 7, seen)
            change(tree, "kernels/backend.h", '#include "kernels/operations.h"',
                   '#include "base/log.h"\n#include "kernels/operations.h"')
            code, said = made()
            self.assertNotEqual(code, 0)
            self.assertIn("kernels/backend.h includes base/log.h, which the contract's identity does not",
                          " ".join(said.split()))


if __name__ == "__main__":
    unittest.main()
