// Entry points that an engine gives to its preloaded library.
#pragma once

namespace isthmus::preload {

using any_function = void (*)();

// A C entry point that calls Function and never throws into the program. OnException is called with the arguments
// and returns the result for the program.
template <auto Function, auto OnException>
struct guarded_function;
template <typename... Arguments, int (*Function)(Arguments...), auto OnException>
struct guarded_function<Function, OnException> {
  static int call(Arguments... arguments) noexcept try { return Function(arguments...); } catch (...) {
    return OnException(arguments...);
  }
};

template <auto Function, auto OnException>
any_function guarded_entry() {
  return reinterpret_cast<any_function>(&guarded_function<Function, OnException>::call);
}

}  // namespace isthmus::preload
