// ALLGATHER_GEMM on the host. The copy thread fetches the peers' rows in chunks from shared memory while the
// caller multiplies, starting with its own rows.
#pragma once

#include "operators/fused/host/plan.hpp"

namespace isthmus::fused {

class host_gather_plan : public host_plan {
 public:
  host_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem, const blas& library);

 private:
  struct shard_location {
    std::uint64_t block = 0;  // 0: outside the heap
    std::uint64_t offset = 0;
    void* const* peers = nullptr;
  };

  void run_sequential(const isthmus_fused_arguments& arguments) override;
  void run_copies(const isthmus_fused_arguments& arguments) override;
  void compute_group(std::size_t index, const isthmus_fused_arguments& arguments) override;
  void finish() override;

  std::byte* gathered(const isthmus_fused_arguments& arguments);
  void gather_all(const isthmus_fused_arguments& arguments);
  void publish(const isthmus_fused_arguments& arguments);
  void stage_own(const isthmus_fused_arguments& arguments);
  void fetch(const row_group& group, std::byte* to);
  const std::byte* address_of(int source) const;
  shard_location find(const void* a) const;
  void copy_dense(const std::byte* from, std::uint64_t lda, std::byte* to, std::uint64_t rows) const;
  std::uint64_t row_of(const row_group& group) const {
    return static_cast<std::uint64_t>(group.source) * m_problem.shard_rows + group.begin;
  }
  std::uint64_t row_bytes() const { return m_problem.moved_row_bytes(); }

  shard_location m_own_shard;
};

}  // namespace isthmus::fused
