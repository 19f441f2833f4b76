// SPDX-License-Identifier: Apache-2.0
// Python's lock, given up while kernels run.
#pragma once

#include <Python.h>

#include <chrono>
#include <thread>

namespace ldpk {

// Python up to 3.13 ends a thread that asks for its lock while the interpreter ends, by unwinding through whatever it
// called: through a destructor, which aborts the process, as those of pybind11's own class do. Such a thread waits here
// for the end of the process, as Python 3.14 has all wait.
class Unlocked {
 public:
  Unlocked() : thread_(PyEval_SaveThread()) {}
  ~Unlocked() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {  // nothing but that end is thrown here, and it may not be left
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  Unlocked(const Unlocked&) = delete;

 private:
  PyThreadState* thread_;
};

}  // namespace ldpk
