// libisthmus_mpi_preload.so: intercepts the collectives of unmodified MPI programs. It does not depend on an
// MPI implementation. The first call detects the MPI family of the program and opens the engine of that family.
// Afterwards, each call jumps to the engine, or to MPI itself if the family has no engine.
//
// Handles are ints in one family and pointers in another, so the functions here take machine words. The calling
// conventions of 64-bit Linux pass ints, pointers and 64-bit counts in the same way: in one register or one
// stack slot. A callee that expects an int ignores the upper half.
//
// Processes that the program starts also load this library, so it depends only on the C library.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/trust.hpp"
#include "frontends/mpi/engine_abi.hpp"
#include "frontends/preload/engine_loader.hpp"

namespace {

using namespace isthmus::mpi_shim;

using word = std::intptr_t;
static_assert(sizeof(word) == 8, "the argument above is about 64-bit machines");

std::atomic<any_function> targets[2][mpi_function_count];
std::atomic<bool> is_resolved;

// Searches the global scope first and then every loaded library, because Python loads MPI with local scope.
void* find_mpi_function(const char* name) {
  if (void* const function = dlsym(RTLD_DEFAULT, name)) return function;
  for (const link_map* object = isthmus::preload::first_loaded_library(); object != nullptr;
       object = object->l_next) {
    void* const library = *object->l_name == '\0' ? nullptr : isthmus::preload::find_loaded(object->l_name);
    if (library == nullptr) continue;
    void* const function = dlsym(library, name);
    dlclose(library);
    if (function != nullptr) return function;
  }
  return nullptr;
}

// Opens the MPI library with global scope, because the engines are not linked with an MPI library.
void* open_mpi() {
  Dl_info info{};
  void* const barrier = find_mpi_function("PMPI_Barrier");
  if (barrier == nullptr || dladdr(barrier, &info) == 0) return nullptr;
  void* const library = isthmus::preload::find_loaded(info.dli_fname, RTLD_GLOBAL);
  return library != nullptr ? library : isthmus::preload::open_program();
}

// Detects the family by its symbols and library name. Returns NULL if there is no engine for it.
const char* detect_family(void* mpi) {
  if (dlsym(mpi, "ompi_mpi_comm_world") != nullptr) return "openmpi";
  Dl_info info{};
  void* const barrier = dlsym(mpi, "PMPI_Barrier");
  if (barrier == nullptr || dladdr(barrier, &info) == 0) return nullptr;
  const char* const name = isthmus::preload::file_name_of(info.dli_fname);
  if (isthmus::preload::starts_with(name, "libmpi_abi.so")) return "abi";
  // MPICH, Intel MPI, MVAPICH and Cray MPI share the first soname. Debian's MPICH uses its own.
  for (const char* const soname : {"libmpi.so.12", "libmpich.so", "libmpifort.so"})
    if (isthmus::preload::starts_with(name, soname)) return "mpich";
  return nullptr;
}

constexpr isthmus::preload::preload_labels labels = {"mpi", "MPI", "the engine of this MPI family"};

// Explains a missing engine to the user.
void warn_of_missing_engine(const char* family, const char* file) {
  const char *name = "MPICH", *fix = "run pip install mpich, set -DISTHMUS_VENV to its virtual environment";
  if (std::strcmp(family, "openmpi") == 0) name = "Open MPI", fix = "install libopenmpi-dev";
  if (std::strcmp(family, "abi") == 0) name = "the MPI 5 ABI";
  char problem[512];
  std::snprintf(problem, sizeof problem,
                "this Isthmus has no engine for %s (%s), because it was built without the mpi.h of that MPI; "
                "install a release wheel, which has all engines, or %s and build Isthmus again",
                name, file, fix);
  isthmus::preload::warn(labels, problem, "");
}

const engine_table* open_engine(const char* family) {
  char file[64], path[PATH_MAX];
  std::snprintf(file, sizeof file, "libisthmus_mpi_%s.so", family);
  if (isthmus::preload::path_in_own_folder(reinterpret_cast<void*>(&open_engine), file, path, sizeof path) &&
      access(path, F_OK) != 0) {
    warn_of_missing_engine(family, file);
    return nullptr;
  }
  using entry_point = const engine_table*();
  return isthmus::preload::open_engine<engine_table, entry_point>(labels, reinterpret_cast<void*>(&open_engine),
                                                                  file, engine_symbol,
                                                                  [](entry_point* start) { return start(); });
}

any_function find_pmpi_function(void* mpi, int function, const char* suffix) {
  char name[64];
  std::snprintf(name, sizeof name, "P%s%s", mpi_function_names[function], suffix);
  return reinterpret_cast<any_function>(dlsym(mpi, name));
}

// Thread safety: two threads may run this at the same time, because both find the same functions.
void resolve_all() {
  is_resolved = true;
  void* const mpi = open_mpi();
  if (mpi == nullptr) {
    isthmus::preload::print_line(
        labels.short_name,
        "an MPI function was called, but no MPI library is loaded in this process; link the program with MPI");
    std::abort();
  }
  const char* const family = detect_family(mpi);
  if (family == nullptr)
    isthmus::preload::warn(
        labels,
        "the MPI library belongs to no supported family: MPICH (libmpi.so.12), Open MPI or the MPI 5 ABI", "");
  const engine_table* const engine = family == nullptr ? nullptr : open_engine(family);
  for (int i = 0; i < mpi_function_count; ++i) {
    const any_function small_target = engine == nullptr ? nullptr : engine->int_count_functions[i];
    const any_function large_target = engine == nullptr ? nullptr : engine->large_count_functions[i];
    targets[0][i].store(small_target != nullptr ? small_target : find_pmpi_function(mpi, i, ""),
                        std::memory_order_release);
    targets[1][i].store(large_target != nullptr ? large_target : find_pmpi_function(mpi, i, "_c"),
                        std::memory_order_release);
  }
}

[[gnu::cold, gnu::noinline]] any_function resolve(mpi_function function, bool has_large_counts) {
  resolve_all();
  const any_function function_address =
      targets[has_large_counts][static_cast<int>(function)].load(std::memory_order_acquire);
  if (function_address != nullptr) return function_address;
  isthmus::preload::print_line(labels.short_name, "the MPI library of this program has no function %s%s",
                               mpi_function_names[static_cast<int>(function)], has_large_counts ? "_c" : "");
  std::abort();
}

// Only engines print reports, and a program without collectives opens none. If a report was requested for such a
// program, rank 0 prints a line at exit.
[[gnu::destructor]] void report_no_calls() {
  if (is_resolved || !isthmus::preload::is_enabled("ISTHMUS_MPI_REPORT")) return;
  const auto is_finalized = reinterpret_cast<int (*)(int*)>(find_mpi_function("PMPI_Finalized"));
  int flag = 0;
  if (is_finalized == nullptr || is_finalized(&flag) != 0 || flag == 0) return;
  for (const char* const variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char* const rank = isthmus::environment_variable(variable);
        rank != nullptr && std::strcmp(rank, "0") != 0)
      return;
  isthmus::preload::print_line(labels.short_name,
                               "the program has called no collective that Isthmus intercepts");
}

template <mpi_function Function, bool HasLargeCounts = false, typename... Words>
word forward(Words... arguments) {
  any_function target = targets[HasLargeCounts][static_cast<int>(Function)].load(std::memory_order_acquire);
  if (target == nullptr) [[unlikely]]
    target = resolve(Function, HasLargeCounts);
  return reinterpret_cast<word (*)(Words...)>(target)(arguments...);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
// NOLINTBEGIN(readability-identifier-naming): names of MPI functions

word MPI_Barrier(word comm) { return forward<mpi_function::mpi_barrier>(comm); }

// The functions take and pass on 5 to 9 words.
#define WORDS_5(prefix) prefix a, prefix b, prefix c, prefix d, prefix e
#define WORDS_6(prefix) WORDS_5(prefix), prefix f
#define WORDS_7(prefix) WORDS_6(prefix), prefix g
#define WORDS_8(prefix) WORDS_7(prefix), prefix h
#define WORDS_9(prefix) WORDS_8(prefix), prefix i
#define MPI_FUNCTION(name, Name, parameters)                              \
  word MPI_##Name(WORDS_##parameters(word)) {                             \
    return forward<mpi_function::mpi_##name>(WORDS_##parameters());       \
  }                                                                       \
  word MPI_##Name##_c(WORDS_##parameters(word)) {                         \
    return forward<mpi_function::mpi_##name, true>(WORDS_##parameters()); \
  }
ISTHMUS_MPI_COUNTED_FUNCTIONS(MPI_FUNCTION)

// NOLINTEND(readability-identifier-naming)
}  // extern "C"
#pragma GCC visibility pop
