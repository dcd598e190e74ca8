// libisthmus_mpi_preload.so: stands before MPI's collectives in a program that was not changed for it. It knows
// no MPI: the first call looks which one the program has, opens the engine of that family, and from then on
// each call is one jump away from it. Where there is no such engine, from MPI itself.
//
// Handles are ints in one family and pointers in another, so the functions here take whole words. That is what
// the calling conventions of 64-bit Linux make of ints, pointers and 64-bit counts alike: one register, or one
// slot of the stack, whose upper half is not looked at where the callee wants an int.
//
// Processes that the program starts load this library, too, so it needs nothing but the C library.
#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "frontends/mpi/calls.hpp"
#include "frontends/preload/engine_loader.hpp"

namespace {

using namespace isthmus::mpi_shim;

using word = std::intptr_t;
static_assert(sizeof(word) == 8, "the argument above is about 64-bit machines");

std::atomic<any_function> targets[2][call_count];

struct loaded_objects {
  static constexpr int most = 1024;
  const char* names[most];
  int n;
};

int note_object(dl_phdr_info* info, std::size_t, void* context) {
  auto& objects = *static_cast<loaded_objects*>(context);
  if (objects.n < loaded_objects::most && info->dlpi_name != nullptr && info->dlpi_name[0] != '\0')
    objects.names[objects.n++] = info->dlpi_name;
  return 0;
}

// The process' own scope first; then, as Python loads MPI out of its sight, each loaded library's.
void* find_barrier() {
  if (void* const found = dlsym(RTLD_DEFAULT, "PMPI_Barrier")) return found;
  loaded_objects objects{};
  dl_iterate_phdr(note_object, &objects);
  for (int i = 0; i < objects.n; ++i) {
    void* const library = dlopen(objects.names[i], RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    void* const found = dlsym(library, "PMPI_Barrier");
    dlclose(library);
    if (found != nullptr) return found;
  }
  return nullptr;
}

// The library of MPI, from now on in everybody's sight: engines are linked with none.
void* open_mpi() {
  Dl_info info{};
  void* const barrier = find_barrier();
  if (barrier == nullptr || dladdr(barrier, &info) == 0) return nullptr;
  void* const library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL);
  return library != nullptr ? library : dlopen(nullptr, RTLD_LAZY);
}

// By what only that family's library has. NULL: none of those that there are engines for.
const char* family_of(void* mpi) {
  if (dlsym(mpi, "ompi_mpi_comm_world") != nullptr) return "openmpi";
  Dl_info info{};
  void* const barrier = dlsym(mpi, "PMPI_Barrier");
  if (barrier == nullptr || dladdr(barrier, &info) == 0) return nullptr;
  const char* const slash = std::strrchr(info.dli_fname, '/');
  const char* const name = slash == nullptr ? info.dli_fname : slash + 1;
  if (std::strncmp(name, "libmpi_abi.so", 13) == 0) return "abi";
  // The soname that MPICH, Intel MPI, MVAPICH and Cray MPI share; Debian's MPICH has its own.
  for (const char* const theirs : {"libmpi.so.12", "libmpich.so", "libmpifort.so"})
    if (std::strncmp(name, theirs, std::strlen(theirs)) == 0) return "mpich";
  return nullptr;
}

constexpr isthmus::preload::preload_labels words = {"mpi", "MPI", "the engine of this MPI family"};

const engine_table* open_engine(const char* family) {
  char file[64];
  std::snprintf(file, sizeof file, "libisthmus_mpi_%s.so", family);
  using entry_point = const engine_table*();
  return isthmus::preload::open_engine<engine_table, entry_point>(words, reinterpret_cast<void*>(&open_engine),
                                                                  file, engine_symbol,
                                                                  [](entry_point* start) { return start(); });
}

any_function pmpi(void* mpi, int which, const char* suffix) {
  char name[64];
  std::snprintf(name, sizeof name, "P%s%s", call_names[which], suffix);
  return reinterpret_cast<any_function>(dlsym(mpi, name));
}

// Two threads may do this at once: both find the same.
void resolve_all() {
  void* const mpi = open_mpi();
  if (mpi == nullptr) {
    std::fprintf(stderr, "isthmus: mpi: no MPI library is loaded in this process, but it calls MPI\n");
    std::abort();
  }
  const char* const family = family_of(mpi);
  if (family == nullptr)
    isthmus::preload::warn(
        words, "this MPI is of no known family; known: MPICH (libmpi.so.12), Open MPI, the MPI 5 ABI", "");
  const engine_table* const engine = family == nullptr ? nullptr : open_engine(family);
  for (int i = 0; i < call_count; ++i) {
    const any_function small = engine == nullptr ? nullptr : engine->small[i];
    const any_function large = engine == nullptr ? nullptr : engine->large[i];
    targets[0][i].store(small != nullptr ? small : pmpi(mpi, i, ""), std::memory_order_release);
    targets[1][i].store(large != nullptr ? large : pmpi(mpi, i, "_c"), std::memory_order_release);
  }
}

[[gnu::cold, gnu::noinline]] any_function resolve(call which, bool large) {
  resolve_all();
  const any_function found = targets[large][static_cast<int>(which)].load(std::memory_order_acquire);
  if (found != nullptr) return found;
  std::fprintf(stderr, "isthmus: mpi: this MPI has no %s%s\n", call_names[static_cast<int>(which)],
               large ? "_c" : "");
  std::abort();
}

template <call Which, bool Large = false, typename... Words>
word forward(Words... words) {
  any_function target = targets[Large][static_cast<int>(Which)].load(std::memory_order_acquire);
  if (target == nullptr) [[unlikely]]
    target = resolve(Which, Large);
  return reinterpret_cast<word (*)(Words...)>(target)(words...);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
// NOLINTBEGIN(readability-identifier-naming): MPI's names

word MPI_Barrier(word comm) { return forward<call::mpi_barrier>(comm); }
word MPI_Bcast(word a, word b, word c, word d, word e) { return forward<call::mpi_bcast>(a, b, c, d, e); }
word MPI_Bcast_c(word a, word b, word c, word d, word e) {
  return forward<call::mpi_bcast, true>(a, b, c, d, e);
}
word MPI_Reduce(word a, word b, word c, word d, word e, word f, word g) {
  return forward<call::mpi_reduce>(a, b, c, d, e, f, g);
}
word MPI_Reduce_c(word a, word b, word c, word d, word e, word f, word g) {
  return forward<call::mpi_reduce, true>(a, b, c, d, e, f, g);
}
word MPI_Allreduce(word a, word b, word c, word d, word e, word f) {
  return forward<call::mpi_allreduce>(a, b, c, d, e, f);
}
word MPI_Allreduce_c(word a, word b, word c, word d, word e, word f) {
  return forward<call::mpi_allreduce, true>(a, b, c, d, e, f);
}
word MPI_Reduce_scatter(word a, word b, word c, word d, word e, word f) {
  return forward<call::mpi_reduce_scatter>(a, b, c, d, e, f);
}
word MPI_Reduce_scatter_c(word a, word b, word c, word d, word e, word f) {
  return forward<call::mpi_reduce_scatter, true>(a, b, c, d, e, f);
}
word MPI_Reduce_scatter_block(word a, word b, word c, word d, word e, word f) {
  return forward<call::mpi_reduce_scatter_block>(a, b, c, d, e, f);
}
word MPI_Reduce_scatter_block_c(word a, word b, word c, word d, word e, word f) {
  return forward<call::mpi_reduce_scatter_block, true>(a, b, c, d, e, f);
}
word MPI_Allgather(word a, word b, word c, word d, word e, word f, word g) {
  return forward<call::mpi_allgather>(a, b, c, d, e, f, g);
}
word MPI_Allgather_c(word a, word b, word c, word d, word e, word f, word g) {
  return forward<call::mpi_allgather, true>(a, b, c, d, e, f, g);
}
word MPI_Allgatherv(word a, word b, word c, word d, word e, word f, word g, word h) {
  return forward<call::mpi_allgatherv>(a, b, c, d, e, f, g, h);
}
word MPI_Allgatherv_c(word a, word b, word c, word d, word e, word f, word g, word h) {
  return forward<call::mpi_allgatherv, true>(a, b, c, d, e, f, g, h);
}
word MPI_Gather(word a, word b, word c, word d, word e, word f, word g, word h) {
  return forward<call::mpi_gather>(a, b, c, d, e, f, g, h);
}
word MPI_Gather_c(word a, word b, word c, word d, word e, word f, word g, word h) {
  return forward<call::mpi_gather, true>(a, b, c, d, e, f, g, h);
}
word MPI_Gatherv(word a, word b, word c, word d, word e, word f, word g, word h, word i) {
  return forward<call::mpi_gatherv>(a, b, c, d, e, f, g, h, i);
}
word MPI_Gatherv_c(word a, word b, word c, word d, word e, word f, word g, word h, word i) {
  return forward<call::mpi_gatherv, true>(a, b, c, d, e, f, g, h, i);
}
word MPI_Scatter(word a, word b, word c, word d, word e, word f, word g, word h) {
  return forward<call::mpi_scatter>(a, b, c, d, e, f, g, h);
}
word MPI_Scatter_c(word a, word b, word c, word d, word e, word f, word g, word h) {
  return forward<call::mpi_scatter, true>(a, b, c, d, e, f, g, h);
}
word MPI_Scatterv(word a, word b, word c, word d, word e, word f, word g, word h, word i) {
  return forward<call::mpi_scatterv>(a, b, c, d, e, f, g, h, i);
}
word MPI_Scatterv_c(word a, word b, word c, word d, word e, word f, word g, word h, word i) {
  return forward<call::mpi_scatterv, true>(a, b, c, d, e, f, g, h, i);
}
word MPI_Alltoall(word a, word b, word c, word d, word e, word f, word g) {
  return forward<call::mpi_alltoall>(a, b, c, d, e, f, g);
}
word MPI_Alltoall_c(word a, word b, word c, word d, word e, word f, word g) {
  return forward<call::mpi_alltoall, true>(a, b, c, d, e, f, g);
}
word MPI_Alltoallv(word a, word b, word c, word d, word e, word f, word g, word h, word i) {
  return forward<call::mpi_alltoallv>(a, b, c, d, e, f, g, h, i);
}
word MPI_Alltoallv_c(word a, word b, word c, word d, word e, word f, word g, word h, word i) {
  return forward<call::mpi_alltoallv, true>(a, b, c, d, e, f, g, h, i);
}

// NOLINTEND(readability-identifier-naming)
}  // extern "C"
#pragma GCC visibility pop
