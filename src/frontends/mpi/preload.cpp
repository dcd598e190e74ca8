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

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "frontends/mpi/engine_abi.hpp"
#include "frontends/preload/engine_loader.hpp"

namespace {

using namespace isthmus::mpi_shim;

using word = std::intptr_t;
static_assert(sizeof(word) == 8, "the argument above is about 64-bit machines");

std::atomic<any_function> targets[2][mpi_function_count];

struct loaded_objects {
  static constexpr int max_names = 1024;
  const char* names[max_names];
  int count;
};

int collect_object_name(dl_phdr_info* info, std::size_t, void* context) {
  auto& objects = *static_cast<loaded_objects*>(context);
  if (objects.count < loaded_objects::max_names && info->dlpi_name != nullptr && info->dlpi_name[0] != '\0')
    objects.names[objects.count++] = info->dlpi_name;
  return 0;
}

// Searches the global scope first and then every loaded library, because Python loads MPI with local scope.
void* find_barrier() {
  if (void* const function_address = dlsym(RTLD_DEFAULT, "PMPI_Barrier")) return function_address;
  loaded_objects objects{};
  dl_iterate_phdr(collect_object_name, &objects);
  for (int i = 0; i < objects.count; ++i) {
    void* const library = dlopen(objects.names[i], RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    void* const function_address = dlsym(library, "PMPI_Barrier");
    dlclose(library);
    if (function_address != nullptr) return function_address;
  }
  return nullptr;
}

// Opens the MPI library with global scope, because the engines are not linked with an MPI library.
void* open_mpi() {
  Dl_info info{};
  void* const barrier = find_barrier();
  if (barrier == nullptr || dladdr(barrier, &info) == 0) return nullptr;
  void* const library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL);
  return library != nullptr ? library : dlopen(nullptr, RTLD_LAZY);
}

// Detects the family by its symbols and library name. Returns NULL if there is no engine for it.
const char* detect_family(void* mpi) {
  if (dlsym(mpi, "ompi_mpi_comm_world") != nullptr) return "openmpi";
  Dl_info info{};
  void* const barrier = dlsym(mpi, "PMPI_Barrier");
  if (barrier == nullptr || dladdr(barrier, &info) == 0) return nullptr;
  const char* const slash = std::strrchr(info.dli_fname, '/');
  const char* const name = slash == nullptr ? info.dli_fname : slash + 1;
  if (std::strncmp(name, "libmpi_abi.so", 13) == 0) return "abi";
  // MPICH, Intel MPI, MVAPICH and Cray MPI share the first soname. Debian's MPICH uses its own.
  for (const char* const soname : {"libmpi.so.12", "libmpich.so", "libmpifort.so"})
    if (std::strncmp(name, soname, std::strlen(soname)) == 0) return "mpich";
  return nullptr;
}

constexpr isthmus::preload::preload_labels labels = {"mpi", "MPI", "the engine of this MPI family"};

const engine_table* open_engine(const char* family) {
  char file[64];
  std::snprintf(file, sizeof file, "libisthmus_mpi_%s.so", family);
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
  void* const mpi = open_mpi();
  if (mpi == nullptr) {
    std::fprintf(
        stderr,
        "isthmus: mpi: an MPI function was called, but no MPI library is loaded in this process; link the "
        "program with MPI\n");
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
  std::fprintf(stderr, "isthmus: mpi: the MPI library of this program has no function %s%s\n",
               mpi_function_names[static_cast<int>(function)], has_large_counts ? "_c" : "");
  std::abort();
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
word MPI_Bcast(word a, word b, word c, word d, word e) {
  return forward<mpi_function::mpi_bcast>(a, b, c, d, e);
}
word MPI_Bcast_c(word a, word b, word c, word d, word e) {
  return forward<mpi_function::mpi_bcast, true>(a, b, c, d, e);
}
word MPI_Reduce(word a, word b, word c, word d, word e, word f, word g) {
  return forward<mpi_function::mpi_reduce>(a, b, c, d, e, f, g);
}
word MPI_Reduce_c(word a, word b, word c, word d, word e, word f, word g) {
  return forward<mpi_function::mpi_reduce, true>(a, b, c, d, e, f, g);
}
word MPI_Allreduce(word a, word b, word c, word d, word e, word f) {
  return forward<mpi_function::mpi_allreduce>(a, b, c, d, e, f);
}
word MPI_Allreduce_c(word a, word b, word c, word d, word e, word f) {
  return forward<mpi_function::mpi_allreduce, true>(a, b, c, d, e, f);
}
word MPI_Reduce_scatter(word a, word b, word c, word d, word e, word f) {
  return forward<mpi_function::mpi_reduce_scatter>(a, b, c, d, e, f);
}
word MPI_Reduce_scatter_c(word a, word b, word c, word d, word e, word f) {
  return forward<mpi_function::mpi_reduce_scatter, true>(a, b, c, d, e, f);
}
word MPI_Reduce_scatter_block(word a, word b, word c, word d, word e, word f) {
  return forward<mpi_function::mpi_reduce_scatter_block>(a, b, c, d, e, f);
}
word MPI_Reduce_scatter_block_c(word a, word b, word c, word d, word e, word f) {
  return forward<mpi_function::mpi_reduce_scatter_block, true>(a, b, c, d, e, f);
}
word MPI_Allgather(word a, word b, word c, word d, word e, word f, word g) {
  return forward<mpi_function::mpi_allgather>(a, b, c, d, e, f, g);
}
word MPI_Allgather_c(word a, word b, word c, word d, word e, word f, word g) {
  return forward<mpi_function::mpi_allgather, true>(a, b, c, d, e, f, g);
}
word MPI_Allgatherv(word a, word b, word c, word d, word e, word f, word g, word h) {
  return forward<mpi_function::mpi_allgatherv>(a, b, c, d, e, f, g, h);
}
word MPI_Allgatherv_c(word a, word b, word c, word d, word e, word f, word g, word h) {
  return forward<mpi_function::mpi_allgatherv, true>(a, b, c, d, e, f, g, h);
}
word MPI_Gather(word a, word b, word c, word d, word e, word f, word g, word h) {
  return forward<mpi_function::mpi_gather>(a, b, c, d, e, f, g, h);
}
word MPI_Gather_c(word a, word b, word c, word d, word e, word f, word g, word h) {
  return forward<mpi_function::mpi_gather, true>(a, b, c, d, e, f, g, h);
}
word MPI_Gatherv(word a, word b, word c, word d, word e, word f, word g, word h, word i) {
  return forward<mpi_function::mpi_gatherv>(a, b, c, d, e, f, g, h, i);
}
word MPI_Gatherv_c(word a, word b, word c, word d, word e, word f, word g, word h, word i) {
  return forward<mpi_function::mpi_gatherv, true>(a, b, c, d, e, f, g, h, i);
}
word MPI_Scatter(word a, word b, word c, word d, word e, word f, word g, word h) {
  return forward<mpi_function::mpi_scatter>(a, b, c, d, e, f, g, h);
}
word MPI_Scatter_c(word a, word b, word c, word d, word e, word f, word g, word h) {
  return forward<mpi_function::mpi_scatter, true>(a, b, c, d, e, f, g, h);
}
word MPI_Scatterv(word a, word b, word c, word d, word e, word f, word g, word h, word i) {
  return forward<mpi_function::mpi_scatterv>(a, b, c, d, e, f, g, h, i);
}
word MPI_Scatterv_c(word a, word b, word c, word d, word e, word f, word g, word h, word i) {
  return forward<mpi_function::mpi_scatterv, true>(a, b, c, d, e, f, g, h, i);
}
word MPI_Alltoall(word a, word b, word c, word d, word e, word f, word g) {
  return forward<mpi_function::mpi_alltoall>(a, b, c, d, e, f, g);
}
word MPI_Alltoall_c(word a, word b, word c, word d, word e, word f, word g) {
  return forward<mpi_function::mpi_alltoall, true>(a, b, c, d, e, f, g);
}
word MPI_Alltoallv(word a, word b, word c, word d, word e, word f, word g, word h, word i) {
  return forward<mpi_function::mpi_alltoallv>(a, b, c, d, e, f, g, h, i);
}
word MPI_Alltoallv_c(word a, word b, word c, word d, word e, word f, word g, word h, word i) {
  return forward<mpi_function::mpi_alltoallv, true>(a, b, c, d, e, f, g, h, i);
}

// NOLINTEND(readability-identifier-naming)
}  // extern "C"
#pragma GCC visibility pop
