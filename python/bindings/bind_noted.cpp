#include <nanobind/nanobind.h>

#include "bindings.hpp"
#include "torch_exchange.hpp"

namespace nb = nanobind;

namespace {

/// What a table holds under a name; null: nothing.
PyObject* entry(PyObject* table, PyObject* name) {
  PyObject* found = PyDict_GetItemWithError(table, name);
  if (found == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
  return found;
}

/// A member of a tuple, which the caller has made so.
PyObject* part(nb::handle row, Py_ssize_t i) { return PyTuple_GET_ITEM(row.ptr(), i); }

/// Of the same type, for 1 == 1.0 == True.
bool is_equal(PyObject* now, PyObject* noted) {
  if (now == noted) return true;
  if (Py_TYPE(now) != Py_TYPE(noted)) return false;
  const int same = PyObject_RichCompareBool(now, noted, Py_EQ);
  if (same < 0) throw nb::python_error();
  return same == 1;
}

bool all_as_noted(const nb::list& sizes, const nb::list& same, const nb::list& equal, const nb::list& given) {
  for (nb::handle row : sizes) {
    if (PyDict_Size(part(row, 0)) != PyLong_AsSsize_t(part(row, 1))) return false;
  }
  for (nb::handle row : same) {
    if (entry(part(row, 0), part(row, 1)) != part(row, 2)) return false;
  }
  for (nb::handle row : given) {
    PyObject* now = entry(part(row, 0), part(row, 1));
    if (now == nullptr || now == Py_None) return false;
  }
  for (nb::handle row : equal) {
    PyObject* now = entry(part(row, 0), part(row, 1));
    if (now == nullptr) return false;
    const nb::object held = nb::borrow(now);  // comparing may run code that drops it
    if (!is_equal(held.ptr(), part(row, 2))) return false;
  }
  return true;
}

nb::object kinds(const nb::tuple& tensors) {
  const std::string found = kinds_of(tensors);
  return found.empty() ? nb::none() : nb::object(to_bytes(found));
}

}  // namespace

/// What modules and calls were like, compared with what they are like now: asked in every call of a module.
void bind_noted(nb::module_& m) {
  m.def("all_as_noted", &all_as_noted, nb::arg("sizes"), nb::arg("same"), nb::arg("equal"), nb::arg("given"),
        nb::sig("def all_as_noted(sizes: list[tuple[dict, int]], same: list[tuple[dict, str, typing.Any]], "
                "equal: list[tuple[dict, str, typing.Any]], given: list[tuple[dict, str]]) -> bool"),
        "Whether dictionaries have these sizes, hold the same objects, equal ones of the same type, and any but None.");
  m.def("kinds_of", &kinds, nb::arg("tensors"), nb::sig("def kinds_of(tensors: tuple) -> bytes | None"),
        "Element types and extents of torch tensors, to be compared; None where something is not a plain one on the "
        "CPU.");
}
