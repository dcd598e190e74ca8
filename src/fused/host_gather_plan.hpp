// ALLGATHER_GEMM on the host: a thread moves the peers' rows chunk by chunk out of shared memory while the
// caller computes, own rows first.
#pragma once

#include <atomic>
#include <optional>

#include "fused/host_board.hpp"
#include "fused/host_product.hpp"
#include "fused/plan.hpp"
#include "runtime/worker.hpp"

namespace isthmus::fused {

class host_gather_plan : public plan {
 public:
  host_gather_plan(std::shared_ptr<communicator> owner, const problem& what, const blas& library);

  void run(const isthmus_fused_arguments& with) override;
  void describe(nlohmann::json& info) const override;
  void synchronize() override {}
  void close() override;

 private:
  struct location {
    std::uint64_t block = 0;  // 0: not in the heap
    std::uint64_t offset = 0;
    void* const* peers = nullptr;
  };

  void run_sequential(const isthmus_fused_arguments& with);
  void run_pipelined(const isthmus_fused_arguments& with);
  void gather_all(const isthmus_fused_arguments& with);
  void compute(const isthmus_fused_arguments& with);
  void compute_group(std::size_t index, const isthmus_fused_arguments& with);
  void move(const isthmus_fused_arguments& with);
  void publish(const isthmus_fused_arguments& with);
  void stage_own(const isthmus_fused_arguments& with);
  void fetch(const row_group& each);
  const std::byte* address_of(int source) const;
  location find(const void* a) const;
  void copy_rows(const std::byte* from, std::uint64_t lda, std::byte* to, std::uint64_t rows) const;
  std::byte* gathered_row(int source, std::uint64_t row) const;
  std::uint64_t row_bytes() const { return m_what.asked.k * m_what.input_bytes(); }

  const blas& m_blas;
  host_product m_product;
  std::optional<host_board> m_board;  // pipelined plans
  std::optional<worker> m_mover;
  std::vector<std::byte> m_workspace, m_packed;
  std::byte* m_gathered = nullptr;  // the workspace, or the caller's gathered_a
  location m_own;
  bool m_staged = false;
  std::uint64_t m_run = 0;  // pipelined runs that communicated
  std::atomic<std::size_t> m_arrived{0};
  std::atomic<bool> m_move_failed{false};
  std::optional<error> m_move_failure;
};

}  // namespace isthmus::fused
