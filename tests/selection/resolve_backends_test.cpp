#include "selection/layer.hpp"
#include "selection/support.hpp"

namespace isthmus::selection {
namespace {

const std::vector<known_backend> known = {{"shm", {"packet", "one_shot"}}, {"mpi", {}}};

// The error of resolve_backends for a config file merged with defaults that name rccl.
std::string check(const std::string& text) {
  configuration merged =
      merge({read_toml("default_backend = \"mpi\"\n[platform.hip]\nbackend = \"rccl\"", "d", "default"),
             read_toml(text, "f.toml", "config")});
  return error_of([&] { resolve_backends(merged, known); });
}

TEST(resolve_backends, accepts_known_configured_and_default_names) {
  EXPECT_EQ(check("[[rule]]\nuse = \"shm:packet\"\n[[rule]]\nuse = \"shm\"\n[[rule]]\nuse = \"rccl:any\""),
            "no error");
  EXPECT_EQ(check("[plugins]\nmine = \"mine.so\"\n[[rule]]\nuse = \"mine:fast\"\n[backend.mine]\nx = 1"),
            "no error");
}

TEST(resolve_backends, error_has_location_and_closest_name) {
  EXPECT_EQ(check("[[rule]]\nuse = \"shmm\""),
            "config f.toml:1: unknown backend \"shmm\"; allowed: mpi, rccl, shm | did you mean \"shm\"?");
  EXPECT_EQ(check("default_backend = \"mpl\""),
            "config f.toml:1, default_backend: unknown backend \"mpl\"; allowed: mpi, rccl, shm | did you mean "
            "\"mpi\"?");
  EXPECT_EQ(check("[platform.cuda]\nbackend = \"rcl\""),
            "config f.toml:2, platform.cuda: unknown backend \"rcl\"; allowed: mpi, rccl, shm | did you mean "
            "\"rccl\"?");
  EXPECT_EQ(
      check("[backend.shmm]\nspins = 3"),
      "option backend.shmm.spins: unknown backend \"shmm\"; allowed: fused, mpi, rccl, shm | did you mean "
      "\"shm\"?");
  EXPECT_EQ(check("[backend.fused]\nchunk_us = 3"), "no error") << "a section of the fused operators";
}

TEST(resolve_backends, error_explains_skipped_plugins) {
  configuration loaded = merge({read_toml("[[rule]]\nuse = \"relay\"", "f.toml", "config")});
  const auto error = [&](const std::vector<skipped_plugin>& skipped) {
    return error_of([&] { resolve_backends(loaded, known, skipped); });
  };
  const std::string unknown = "config f.toml:1: unknown backend \"relay\"; allowed: mpi, shm";
  const std::string hint =
      " | run isthmus info, which lists all backends and skipped plug-ins, or remove this setting";
  EXPECT_EQ(error({{"libother", "plug-in libother.so: old"}}), unknown + hint);
  for (const char* stem : {"librelay", "relay", "libisthmus_relay", ""})
    EXPECT_EQ(error({{stem, "plug-in FILE: old"}}), unknown + "; skipped plug-in FILE: old" + hint) << stem;
}

TEST(resolve_backends, rejects_unknown_algorithms) {
  EXPECT_EQ(
      check("[[rule]]\nuse = \"shm:paket\""),
      "config f.toml:1: unknown algorithm of backend shm \"paket\"; allowed: packet, one_shot | did you mean "
      "\"packet\"?");
  EXPECT_EQ(check("[[rule]]\nuse = \"mpi:ring\""),
            "config f.toml:1: backend mpi has no algorithms, but the rule requires \"ring\" | write use = "
            "\"mpi\"");
}

TEST(resolve_backends, rejects_unknown_options) {
  const std::string unknown = check("[backend.shm]\nslot_byte = 4096");
  EXPECT_TRUE(unknown.starts_with(
      "option backend.shm.slot_byte: unknown option of backend shm \"slot_byte\"; allowed: "))
      << unknown;
  EXPECT_TRUE(unknown.ends_with("| did you mean \"slot_bytes\"?")) << unknown;
  EXPECT_EQ(check("[backend.shm]\nslot_bytes = 4096\nspins = 3"), "no error");
  EXPECT_EQ(
      check("[backend.mpi]\nspeed = 1"),
      "option backend.mpi.speed: unknown option of backend mpi \"speed\"; allowed: buffers, chunk_bytes | ");
  EXPECT_NE(check("[backend.fused]\nchunks_us = 3").find("did you mean \"chunk_us\"?"), std::string::npos);
  EXPECT_NE(check("[backend.p2p]\nbf16_element = 3").find("did you mean \"bf16_elements\"?"), std::string::npos)
      << "a backend of the default rules that this build may lack";
  EXPECT_EQ(check("[backend.p2p]\nbf16_elements_16 = 3"), "no error");
  EXPECT_NE(check("[backend.p2p]\nbf16_elements_x = 3"), "no error");
}

TEST(resolve_backends, sets_the_index_of_each_algorithm) {
  configuration merged =
      merge({read_toml("default_backend = \"mpi\"\n[platform.hip]\nbackend = \"rccl\"", "d", "default"),
             read_toml("[[rule]]\nuse = \"shm:packet\"\n[[rule]]\nuse = \"shm:one_shot\"\n"
                       "[[rule]]\nuse = \"shm\"\n[[rule]]\nuse = \"rccl:any\"",
                       "f.toml", "config")});
  resolve_backends(merged, known);
  std::vector<int> indices;
  for (const selection_rule& rule : merged.rules)
    if (rule.source.starts_with("config")) indices.push_back(rule.algorithm_index);
  EXPECT_EQ(indices, (std::vector{0, 1, -1, -1})) << "rccl is not known here";
}

class resolve_backends_forced : public configured {};

TEST_F(resolve_backends_forced, accepts_default_options_of_missing_backends) {
  set("ISTHMUS_BACKEND", "mpi");
  configuration loaded = load_configuration(nullptr);
  EXPECT_FALSE(loaded.options.empty());
  EXPECT_EQ(error_of([&] { resolve_backends(loaded, known); }), "no error");
}

}  // namespace
}  // namespace isthmus::selection
