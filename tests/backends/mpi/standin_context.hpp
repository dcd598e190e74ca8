// A recording backend context over a real MPI table, to test the backend without the runtime.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <vector>

namespace mpi_test {

struct standin_context {
  isthmus_backend_context context{};
  isthmus_status status = ISTHMUS_SUCCESS;
  std::int64_t native_code = 0;
  std::string message, hint;
  std::vector<std::string> logged;
  std::atomic<int> is_aborted{0};

  standin_context(const isthmus_mpi_table* table, isthmus_mpi_comm comm, double timeout_s) {
    context.struct_bytes = sizeof context;
    context.runtime = this;
    if (table != nullptr) {
      table->comm_rank(comm, &context.rank);
      table->comm_size(comm, &context.size);
    }
    context.process_size = 1;
    context.timeout_s = timeout_s;
    context.mpi = table;
    context.mpi_comm = comm;
    context.fail = on_fail;
    context.fail_with_ranks = on_fail_with_ranks;
    context.log = on_log;
    context.is_aborted = [](void* self) { return static_cast<standin_context*>(self)->is_aborted.load(); };
    context.option = [](void*, const char*) -> const char* { return nullptr; };
  }

 private:
  static std::string format_text(const char* format, va_list arguments) {
    char text[1024];
    std::vsnprintf(text, sizeof text, format, arguments);
    return text;
  }

  static isthmus_status on_fail(void* self, isthmus_status status, int64_t native_code, const char*,
                                const char* hint, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    static_cast<standin_context*>(self)->store_failure(status, native_code, hint,
                                                       format_text(format, arguments));
    va_end(arguments);
    return status;
  }

  static isthmus_status on_fail_with_ranks(void* self, const int*, std::size_t, isthmus_status status,
                                           int64_t native_code, const char*, const char* hint,
                                           const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    static_cast<standin_context*>(self)->store_failure(status, native_code, hint,
                                                       format_text(format, arguments));
    va_end(arguments);
    return status;
  }

  void store_failure(isthmus_status failure, int64_t code, const char* advice, const std::string& text) {
    message = text;
    status = failure;
    native_code = code;
    hint = advice == nullptr ? "" : advice;
  }

  static void on_log(void* self, int, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    static_cast<standin_context*>(self)->logged.push_back(format_text(format, arguments));
    va_end(arguments);
  }
};

}  // namespace mpi_test
