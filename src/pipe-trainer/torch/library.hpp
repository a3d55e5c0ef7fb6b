// Functions of a library that is there only when the program runs.

#pragma once

#include <dlfcn.h>

#include <type_traits>

#include <torch/torch.h>

class Library {
  void* handle;
  const char* purpose;

 public:
  // `purpose` begins the message where something is missing.
  Library(const char* name, int flags, const char* purpose) : handle(dlopen(name, flags)), purpose(purpose) {
    if (handle) return;
    const char* why = dlerror();
    TORCH_CHECK(false, purpose, ": ", why ? why : name);
  }

  // Where the function lies, which `into` points to from now on.
  template <typename F>
  void* find(F& into, const char* name) const {
    void* symbol = dlsym(handle, name);
    TORCH_CHECK(symbol, purpose, ": no ", name);
    into = reinterpret_cast<F>(symbol);
    return symbol;
  }
};
