"""A build folder keeps its first decision about the CUDA backend (cmake/CtwCuda.cmake), and says so. The toolkit here
is a fake one: FindCUDAToolkit.cmake and CheckLanguage.cmake that find what the variable HAVE says."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(decides NONE)
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_SOURCE_DIR} %s)
set(CTW_CUDA AUTO CACHE STRING "")
set(CTW_SANITIZE "" CACHE STRING "")
function(enable_language name)
endfunction()
include(CtwCuda)
message(STATUS "HAS: ${CTW_HAS_CUDA}")
"""
TOOLKIT = """
set(CUDAToolkit_FOUND $ENV{HAVE})
if(CUDAToolkit_FOUND)
  add_library(CUDA::cublasLt INTERFACE IMPORTED)
endif()
"""
LANGUAGE = """
macro(check_language name)
  set(CMAKE_CUDA_COMPILER nvcc)
endmacro()
"""


class Decision(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.source, self.build = Path(scratch.name) / "source", Path(scratch.name) / "build"
        self.source.mkdir()
        for name, text in (("CMakeLists.txt", PROJECT % (ROOT / "cmake").as_posix()), ("FindCUDAToolkit.cmake", TOOLKIT),
                           ("CheckLanguage.cmake", LANGUAGE)):
            (self.source / name).write_text(text)

    def configure(self, have, *options):
        """The output of cmake, in one line; with "failed" first if it failed."""
        done = subprocess.run(["cmake", "-S", self.source, "-B", self.build, *options], env=os.environ | {"HAVE": have},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        return " ".join((("failed " if done.returncode else "") + done.stdout).split())

    def test_a_toolkit_that_appears_changes_nothing(self):
        self.assertIn("building without the GPU backend -- HAS: OFF", self.configure("OFF"))
        text = self.configure("ON")
        self.assertIn("CUDA: off, as when this folder was first configured (-DCTW_CUDA=ON builds", text)
        self.assertIn("HAS: OFF", text)

    def test_a_toolkit_that_disappears_is_missed(self):
        self.assertIn("HAS: ON", self.configure("ON"))
        self.assertIn("HAS: ON", self.configure("ON"))
        text = self.configure("OFF")
        self.assertTrue(text.startswith("failed"), text)
        self.assertIn("This build folder builds the GPU backend, but no working CUDA toolkit 12.8 or newer", text)
        self.assertIn("HAS: OFF", self.configure("OFF", "-DCTW_CUDA=OFF"))

    def test_a_change_that_was_asked_for_is_said(self):
        self.assertIn("HAS: OFF", self.configure("ON", "-DCTW_CUDA=OFF"))
        text = self.configure("ON", "-DCTW_CUDA=ON")
        self.assertIn("this folder had the GPU backend OFF before, and now has it ON -- HAS: ON", text)
        self.assertIn("CTW_CUDA is ON, but no working", self.configure("OFF", "-DCTW_CUDA=ON"))


if __name__ == "__main__":
    unittest.main()
