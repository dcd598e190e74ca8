// Threshold and default backend of the SuCL paper (section 4.3), tested through select().
#include "selection/layer.hpp"
#include "selection/support.hpp"

namespace isthmus::selection {
namespace {

// The backend selected for an allreduce of `bytes` on `platform` if all backends but `missing` are available.
std::string selected_backend(const configuration& config, isthmus_platform platform,
                             std::optional<std::uint64_t> bytes, const std::string& missing = "") {
  const selection_query query{ISTHMUS_ALLREDUCE, ISTHMUS_FLOAT32, platform, memory_kind::any, 4, 2, bytes};
  const auto available = [&](const selection_rule& rule) {
    return rule.backend == missing ? "not installed" : nullptr;
  };
  const selection_decision result = select(config, query, available, false);
  return result.winner == nullptr ? "none" : result.winner->backend;
}

configuration parse_configuration(const std::string& text) {
  return merge({read_toml("default_backend = \"mpi\"\n[platform.cuda]\nbackend = \"nccl\"", "d", "default"),
                read_toml(text, "f.toml", "config")});
}

TEST(threshold, positive_splits_by_size) {
  const configuration split = parse_configuration("threshold = 4096");
  EXPECT_EQ(selected_backend(split, ISTHMUS_PLATFORM_CUDA, 0), "mpi");
  EXPECT_EQ(selected_backend(split, ISTHMUS_PLATFORM_CUDA, 4095), "mpi");
  EXPECT_EQ(selected_backend(split, ISTHMUS_PLATFORM_CUDA, 4096), "nccl");
  EXPECT_EQ(selected_backend(split, ISTHMUS_PLATFORM_CUDA, std::numeric_limits<std::uint64_t>::max()), "nccl");
  EXPECT_EQ(selected_backend(split, ISTHMUS_PLATFORM_HOST, 1 << 20), "mpi");  // no vendor backend
}

TEST(threshold, unknown_sizes_use_the_vendor_backend) {
  EXPECT_EQ(selected_backend(parse_configuration("threshold = 4096"), ISTHMUS_PLATFORM_CUDA, std::nullopt),
            "nccl");
}

TEST(threshold, zero_always_uses_the_vendor_backend) {
  const configuration always = parse_configuration("threshold = 0");
  EXPECT_EQ(selected_backend(always, ISTHMUS_PLATFORM_CUDA, 0), "nccl");
  EXPECT_EQ(selected_backend(always, ISTHMUS_PLATFORM_CUDA, 1 << 30), "nccl");
}

TEST(threshold, negative_always_uses_mpi) {
  const configuration never = parse_configuration("threshold = -1\n[platform.host]\nbackend = \"shm\"");
  for (const isthmus_platform platform :
       {ISTHMUS_PLATFORM_CUDA, ISTHMUS_PLATFORM_HOST, ISTHMUS_PLATFORM_OPENCL}) {
    EXPECT_EQ(selected_backend(never, platform, 0), "mpi");
    EXPECT_EQ(selected_backend(never, platform, 1 << 30), "mpi");
    EXPECT_EQ(selected_backend(never, platform, std::nullopt), "mpi");
  }
}

TEST(threshold, expands_to_rules_with_their_source) {
  const configuration split = parse_configuration("timeout_s = 1\nthreshold = \"64K\"\n[[rule]]\nuse = \"x\"");
  EXPECT_EQ(texts(split.rules),
            (std::vector<std::string>{"use=mpi", "platform=cuda use=nccl", "platform=cuda use=nccl",
                                      "platform=cuda bytes=0..64K use=mpi", "use=x"}));
  EXPECT_EQ(sources(split.rules),
            (std::vector<std::string>{"default, default_backend", "default, platform.cuda",
                                      "config f.toml:2, threshold", "config f.toml:2, threshold",
                                      "config f.toml:3"}));
}

TEST(threshold, later_vendor_backend_keeps_the_threshold) {
  const configuration merged = merge({read_toml("threshold = 1024", "d", "default"),
                                      read_toml("[platform.hip]\nbackend = \"rccl\"", "f.toml", "config")});
  EXPECT_EQ(texts(merged.rules),
            (std::vector<std::string>{"platform=hip use=rccl", "platform=hip bytes=0..1K use=mpi"}));
  EXPECT_EQ(merged.rules[0].source, "config f.toml:2, platform.hip");
}

TEST(threshold, later_threshold_keeps_the_vendor_backends) {
  const configuration merged = parse_configuration("threshold = 1024\n[platform.cuda]\nbackend = \"fast\"");
  EXPECT_EQ(selected_backend(merged, ISTHMUS_PLATFORM_CUDA, 1024), "fast");
  EXPECT_EQ(selected_backend(merged, ISTHMUS_PLATFORM_CUDA, 1024, "fast"), "nccl");  // the rule has precedence
}

TEST(threshold, accepts_the_largest_value) {
  const configuration merged = parse_configuration("threshold = 9223372036854775807");
  EXPECT_EQ(selected_backend(merged, ISTHMUS_PLATFORM_CUDA, (std::uint64_t{1} << 63) - 2), "mpi");
  EXPECT_EQ(selected_backend(merged, ISTHMUS_PLATFORM_CUDA, (std::uint64_t{1} << 63) - 1), "nccl");
}

TEST(threshold, missing_backend_falls_back_to_the_other_side) {
  const configuration split = parse_configuration("threshold = 4096");
  EXPECT_EQ(selected_backend(split, ISTHMUS_PLATFORM_CUDA, 1, "mpi"), "nccl");
  EXPECT_EQ(selected_backend(split, ISTHMUS_PLATFORM_CUDA, 4096, "nccl"), "mpi");
}

TEST(fallback, applies_if_no_rule_can_run_the_call) {
  const configuration merged = parse_configuration(
      "default_backend = \"tcp\"\n[platform.cuda]\nfallback = \"peer\"\n[[rule]]\nbytes = \"..64\"\nuse = "
      "\"fast\"");
  EXPECT_EQ(selected_backend(merged, ISTHMUS_PLATFORM_CUDA, 32), "fast");
  EXPECT_EQ(selected_backend(merged, ISTHMUS_PLATFORM_CUDA, 64), "nccl");
  EXPECT_EQ(selected_backend(merged, ISTHMUS_PLATFORM_CUDA, 64, "nccl"), "peer");
  EXPECT_EQ(selected_backend(merged, ISTHMUS_PLATFORM_HIP, 64, "rccl"), "tcp");
}

// With deterministic = true, NCCL refuses reductions.
TEST(fallback, runs_all_sizes_of_a_reduction_on_two_devices) {
  const configuration defaults = merge({built_in_defaults()});
  for (const isthmus_collective collective : {ISTHMUS_REDUCE, ISTHMUS_ALLREDUCE, ISTHMUS_REDUCE_SCATTER}) {
    for (std::uint64_t bytes = 1; bytes < std::uint64_t{1} << 40; bytes *= 8) {
      const selection_query query{collective, ISTHMUS_FLOAT32, ISTHMUS_PLATFORM_CUDA, memory_kind::any, 2, 1,
                                  bytes};
      const auto available = [](const selection_rule& rule) {
        return rule.backend == "nccl" ? "deterministic" : nullptr;
      };
      const selection_decision result = select(defaults, query, available, false);
      ASSERT_NE(result.winner, nullptr);
      EXPECT_EQ(result.winner->backend, "p2p") << bytes;
    }
  }
}

TEST(default_backend, applies_only_without_other_rules) {
  const configuration merged = parse_configuration("default_backend = \"tcp\"");
  EXPECT_EQ(selected_backend(merged, ISTHMUS_PLATFORM_OPENCL, 64), "tcp");
  EXPECT_EQ(selected_backend(merged, ISTHMUS_PLATFORM_CUDA, 64), "nccl");
  EXPECT_EQ(selected_backend(merged, ISTHMUS_PLATFORM_CUDA, 64, "nccl"), "tcp");
  EXPECT_EQ(selected_backend(merged, ISTHMUS_PLATFORM_OPENCL, 64, "tcp"),
            "mpi");  // the built-in default still applies
}

}  // namespace
}  // namespace isthmus::selection
