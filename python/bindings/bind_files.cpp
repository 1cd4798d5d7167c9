#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>

#include <cerrno>
#include <memory>

#include "bindings.hpp"
#include "onnx_io/atomic_file.hpp"

namespace nb = nanobind;
using backpass::onnx_io::AtomicFile;

namespace {

/// The engine's file as Python knows files: what the system refuses is an OSError.
class WrittenFile {
 public:
  explicit WrittenFile(const std::filesystem::path& path) : path_(path) {
    asking([&] { file_ = std::make_unique<AtomicFile>(path); });
  }

  void write(nb::handle content) {
    AtomicFile& file = open_file();
    Py_buffer view;
    if (PyObject_GetBuffer(content.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
    const std::unique_ptr<Py_buffer, decltype(&PyBuffer_Release)> release(&view, &PyBuffer_Release);
    asking([&] { file.write({static_cast<const char*>(view.buf), static_cast<std::size_t>(view.len)}); });
  }
  void publish() {
    AtomicFile& file = open_file();
    asking([&] {
      file.finish();
      file.publish();
    });
  }
  void close() { file_.reset(); }

 private:
  AtomicFile& open_file() const {
    if (file_ == nullptr) throw nb::value_error("the file is closed");
    return *file_;
  }
  template <class F>
  void asking(const F& f) {
    int code = 0;
    {
      const nb::gil_scoped_release release;
      try {
        f();
      } catch (const backpass::onnx_io::FileError& error) {
        code = error.code;
      }
    }
    if (code == 0) return;
    errno = code;
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, path_.c_str());
    throw nb::python_error();
  }

  std::filesystem::path path_;
  std::unique_ptr<AtomicFile> file_;
};

}  // namespace

void bind_files(nb::module_& m) {
  nb::class_<WrittenFile>(m, "AtomicFile",
                          "A file beside its destination, whose place it takes with publish(), and not without.")
      .def(nb::init<const std::filesystem::path&>(), nb::arg("path"))
      .def("write", &WrittenFile::write, nb::arg("content"))
      .def("publish", &WrittenFile::publish, "On the disk, whole, under its own name.")
      .def("close", &WrittenFile::close, "Removes what was not published.");
}
