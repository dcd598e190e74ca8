// Configuration sources and their precedence.
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "selection/profile.hpp"
#include "selection/support.hpp"

namespace isthmus::selection {
namespace {

class load : public configured {
 protected:
  // Sources and texts of the rules that are not built in.
  static std::vector<std::string> configured_rules(const configuration& config) {
    std::vector<std::string> result;
    for (const selection_rule& rule : config.rules) {
      if (!rule.source.starts_with("default")) result.push_back(rule.source + " | " + rule.text);
    }
    return result;
  }
};

template <typename Value>
std::optional<Value> find(const std::vector<std::pair<std::string, Value>>& list, const std::string& key) {
  for (const auto& [name, value] : list) {
    if (name == key) return value;
  }
  return std::nullopt;
}

TEST_F(load, defaults_alone) {
  const configuration read = load_configuration(nullptr);
  EXPECT_TRUE(read.files.empty());
  EXPECT_EQ(read.timeout_s, 300);
  ASSERT_FALSE(read.rules.empty());
  EXPECT_EQ(read.rules.front().text, "use=mpi");
  EXPECT_EQ(find(read.sycl_backends, "ext_oneapi_cuda"), ISTHMUS_PLATFORM_CUDA);
  const auto all = texts(read.rules);
  for (const char* text : {"platform=cuda use=nccl", "platform=hip use=rccl", "platform=level_zero use=oneccl",
                           "platform=host nodes=1 use=shm"})
    EXPECT_NE(std::find(all.begin(), all.end(), text), all.end()) << text;
}

// Only float sums have kernels of p2p that use the full bandwidth.
TEST_F(load, default_rules_give_large_maxima_to_nccl) {
  const configuration read = load_configuration(nullptr);
  selection_query query{ISTHMUS_ALLREDUCE, ISTHMUS_FLOAT32, ISTHMUS_PLATFORM_CUDA, memory_kind::any, 2, 1,
                        64 << 20};
  const auto selected = [&](isthmus_reduction_op op, std::uint64_t bytes) {
    query.op = op;
    query.bytes = bytes;
    const auto available = [](const selection_rule& rule) {
      return rule.algorithm == "two_shot_zero_copy" ? "no buffers" : nullptr;
    };
    return select(read, query, available, false).winner->backend;
  };
  EXPECT_EQ(selected(ISTHMUS_SUM, 16 << 20), "p2p");
  EXPECT_EQ(selected(ISTHMUS_MAX, 32 << 20), "nccl");
  EXPECT_EQ(selected(ISTHMUS_MAX, 64 << 10), "p2p");
  query.datatype = ISTHMUS_INT64;
  EXPECT_EQ(selected(ISTHMUS_SUM, 32 << 20), "nccl");
  EXPECT_EQ(selected(ISTHMUS_SUM, 64 << 10), "p2p");
}

TEST_F(load, the_first_config_file_found_is_read_alone) {
  write("xdg/isthmus/isthmus.toml", "timeout_s = 2");
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 2);
  write("isthmus.toml", "timeout_s = 3");
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 3);
  set("ISTHMUS_CONFIG", write("named.toml", "timeout_s = 4").c_str());
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 4);
  EXPECT_EQ(load_configuration("").timeout_s, 4);
  write("argument.toml", "timeout_s = 5");
  const configuration read = load_configuration("argument.toml");
  EXPECT_EQ(read.timeout_s, 5);
  EXPECT_EQ(read.files, std::vector<std::string>{"argument.toml"});
  set("ISTHMUS_CONFIG", "none");
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 300);
}

TEST_F(load, home_is_used_without_xdg) {
  set("XDG_CONFIG_HOME", nullptr);
  set("HOME", m_folder.c_str());
  write(".config/isthmus/isthmus.toml", "timeout_s = 6");
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 6);
  set("HOME", nullptr);
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 300);
}

// In a child whose /etc is empty.
TEST_F(load, file_of_the_system_is_the_last_choice) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can replace /etc";
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", "/etc", "tmpfs", 0, nullptr) != 0)
      _exit(2);
    write("/etc/isthmus/isthmus.toml", "timeout_s = 7");
    const bool is_read = load_configuration(nullptr).timeout_s == 7;
    write("xdg/isthmus/isthmus.toml", "timeout_s = 2");
    _exit(is_read && load_configuration(nullptr).timeout_s == 2 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "this process must not mount file systems";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(load, subcommunicators_do_not_use_their_creator) {
  set("ISTHMUS_CONFIG", "none");
  set("ISTHMUS_RULE", "use=shm; use=mpi:a; bytes=1K.. use=shm:b");
  configuration parent = load_configuration(nullptr);
  parent.check = true;
  configuration child = subcommunicator_configuration(parent, "shm", nullptr);
  EXPECT_FALSE(child.check);
  EXPECT_EQ(child.rules.back().text, "use=mpi:a");
  EXPECT_EQ(child.rules.size(),
            parent.rules.size() - static_cast<std::size_t>(std::ranges::count(
                                      parent.rules, "shm", [](const auto& rule) { return rule.backend; })));
  for (const selection_rule& rule : child.rules) EXPECT_NE(rule.backend, "shm");

  child = subcommunicator_configuration(parent, "shm", "nccl:ring");
  EXPECT_EQ(child.rules.back().text, "use=nccl:ring");

  set("ISTHMUS_BACKEND", "shm");  // no rule is left, so the built-in rules apply
  child = subcommunicator_configuration(load_configuration(nullptr), "shm", nullptr);
  const auto all = texts(child.rules);
  EXPECT_NE(std::ranges::find(all, "use=mpi"), all.end());
  for (const selection_rule& rule : child.rules) EXPECT_NE(rule.backend, "shm");
  EXPECT_NE(error_of([&] { subcommunicator_configuration(parent, "shm", "Host"); }), "no error");
}

TEST_F(load, later_sources_take_precedence) {
  const std::string profile = write(profile_path(detect_machine()), R"(
timeout_s = 10
default_backend = "a"
[sycl_backends]
4 = "cuda"
opencl = "host"
[backend.shm]
spin_us = 1
slots = 2
[plugins]
mine = "./libone.so"
[[rule]]
use = "one"
)");
  write("isthmus.toml", R"(
timeout_s = 20
default_backend = "b"
[sycl_backends]
4 = "hip"
[backend.shm]
spin_us = 3
[[rule]]
use = "two"
)");
  set("ISTHMUS_RULE", "use=three");
  configuration read = load_configuration(nullptr);
  EXPECT_EQ(read.files, (std::vector<std::string>{profile, "isthmus.toml"}));
  EXPECT_EQ(configured_rules(read),
            (std::vector<std::string>{"profile " + profile + ":3, default_backend | use=a",
                                      "config isthmus.toml:3, default_backend | use=b",
                                      "profile " + profile + ":12 | use=one", "config isthmus.toml:8 | use=two",
                                      "environment ISTHMUS_RULE | use=three"}));
  EXPECT_EQ(read.rules[0].source, "default, default_backend");
  EXPECT_EQ(read.rules.back().text, "use=three");
  EXPECT_EQ(read.timeout_s, 20);
  EXPECT_EQ(find(read.sycl_backends, "4"), ISTHMUS_PLATFORM_HIP);
  EXPECT_EQ(find(read.sycl_backends, "opencl"), ISTHMUS_PLATFORM_HOST);
  EXPECT_EQ(find(read.options, "backend.shm.spin_us"), "3");
  EXPECT_EQ(find(read.options, "backend.shm.slots"), "2");
  EXPECT_EQ(find(read.plugins, "mine"), (std::filesystem::path(profile).parent_path() / "libone.so").string());
  write("named.toml", "[plugins]\nmine = \"./libtwo.so\"\n");
  EXPECT_EQ(find(load_configuration("named.toml").plugins, "mine"), (m_folder / "libtwo.so").string());
  set("ISTHMUS_TIMEOUT_S", "30");
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 30);
}

TEST_F(load, profile_can_be_named_or_disabled) {
  write(profile_path(detect_machine()), "timeout_s = 10");
  set("ISTHMUS_PROFILE", write("other.toml", "timeout_s = 11").c_str());
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 11);
  set("ISTHMUS_PROFILE", "none");
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 300);
}

TEST_F(load, profile_keeps_conditions_of_measurement) {
  EXPECT_EQ(load_configuration(nullptr).profile.file, "");
  const std::string text = "[measured]\ncores = 4\ncpu = \"x y\"\n";
  const std::string path = write(profile_path(detect_machine()), text);
  const configuration read = load_configuration(nullptr);
  EXPECT_EQ(read.profile.file, path);
  EXPECT_EQ(find(read.profile.measured, "cores"), "4");
  EXPECT_EQ(find(read.profile.measured, "cpu"), "x y");
  set("ISTHMUS_PROFILE", "none");
  EXPECT_EQ(read.canonical(), load_configuration(nullptr).canonical());  // ranks may differ in it
  write("isthmus.toml", text);
  EXPECT_NE(error_of([] { load_configuration(nullptr); }), "no error") << "only a profile has conditions";
}

TEST_F(load, options_are_converted_to_text) {
  write("isthmus.toml", "[backend.shm]\na = \"x y\"\nb = 3\nc = 0.1\nd = true\ne = -5\n");
  const configuration read = load_configuration(nullptr);
  EXPECT_EQ(find(read.options, "backend.shm.a"), "x y");
  EXPECT_EQ(find(read.options, "backend.shm.b"), "3");
  EXPECT_EQ(find(read.options, "backend.shm.c"), "0.1");
  EXPECT_EQ(find(read.options, "backend.shm.d"), "true");
  EXPECT_EQ(find(read.options, "backend.shm.e"), "-5");
}

TEST_F(load, relative_plugin_paths_start_at_the_config_file) {
  write("etc/a.toml", "[plugins]\na = \"lib/a.so\"\nb = \"b.so\"\nc = \"/opt/c.so\"\n");
  const configuration read = load_configuration("etc/a.toml");
  EXPECT_EQ(find(read.plugins, "a"), (m_folder / "etc/lib/a.so").string());
  EXPECT_EQ(find(read.plugins, "b"), "b.so");  // resolved by the dynamic linker
  EXPECT_EQ(find(read.plugins, "c"), "/opt/c.so");
}

TEST_F(load, named_files_must_be_readable) {
  EXPECT_EQ(error_of([] { load_configuration("missing.toml"); }),
            "cannot read missing.toml (named by config_path): No such file or directory | correct the path or "
            "unset it");
  EXPECT_EQ(error_of([] { load_configuration("."); }),
            "cannot read . (named by config_path): Is a directory | correct the path or unset it");
  set("ISTHMUS_CONFIG", "gone/c.toml");
  EXPECT_EQ(
      error_of([] { load_configuration(nullptr); }),
      "cannot read gone/c.toml (named by ISTHMUS_CONFIG): No such file or directory | correct the path or "
      "unset it");
  set("ISTHMUS_CONFIG", nullptr);
  set("ISTHMUS_PROFILE", "p.toml");
  EXPECT_EQ(
      error_of([] { load_configuration(nullptr); }),
      "cannot read p.toml (named by ISTHMUS_PROFILE): No such file or directory | correct the path or unset "
      "it");
}

TEST_F(load, existing_default_files_must_be_readable) {
  std::filesystem::create_directory("isthmus.toml");
  EXPECT_EQ(error_of([] { load_configuration(nullptr); }), "cannot read isthmus.toml: Is a directory | ");
}

// The reader must not block and must not read endless files.
TEST_F(load, only_small_regular_files_are_read) {
  ASSERT_EQ(mkfifo("pipe", 0600), 0);
  EXPECT_EQ(
      error_of([] { load_configuration("pipe"); }),
      "cannot read pipe (named by config_path): it is a pipe, must be a regular file | correct the path or "
      "unset it");
  EXPECT_EQ(
      error_of([] { load_configuration("/dev/zero"); }),
      "cannot read /dev/zero (named by config_path): it is a device, must be a regular file | correct the "
      "path or unset it");
  write("large.toml", std::string(1 << 20, '\n'));
  EXPECT_NO_THROW(load_configuration("large.toml"));
  write("larger.toml", std::string((1 << 20) + 1, '\n'));
  EXPECT_EQ(error_of([] { load_configuration("larger.toml"); }),
            "cannot read larger.toml (named by config_path): it has more than 1048576 bytes, the limit for "
            "configuration files | correct the path or unset it");
}

// 600 KB of each nesting construct.
TEST_F(load, deep_nesting_is_rejected) {
  constexpr std::size_t size = 600'000;
  const auto repeated = [](const std::string& text, std::size_t times) {
    std::string all;
    for (std::size_t i = 0; i < times; ++i) all += text;
    return all;
  };
  const std::string nested_documents[] = {repeated("[", size),
                                          "a=" + repeated("[", size),
                                          "a=" + repeated("[", size / 2) + repeated("]", size / 2),
                                          "a=" + repeated("{a=", size / 3),
                                          "a" + repeated(".a", size / 2) + "=1",
                                          "[a" + repeated(".a", size / 2) + "]",
                                          "a=" + repeated("[\n{a" + repeated(".a", 250) + "=", size / 500)};
  for (const std::string& nested_document : nested_documents) {
    write("bomb.toml", nested_document);
    EXPECT_TRUE(error_of([] { load_configuration("bomb.toml"); }).starts_with("bomb.toml:"))
        << nested_document.substr(0, 40);
  }
}

TEST_F(load, excessive_timeouts_are_rejected) {
  for (const char* text : {"timeout_s = 1e10", "timeout_s = 1e300", "timeout_s = inf", "timeout_s = nan",
                           "timeout_s = 0", "timeout_s = -1"}) {
    write("t.toml", text);
    EXPECT_TRUE(error_of([] { load_configuration("t.toml"); }).starts_with("t.toml:1:")) << text;
  }
  write("t.toml", "timeout_s = 1e9");
  EXPECT_EQ(load_configuration("t.toml").timeout_s, 1e9);
  set("ISTHMUS_TIMEOUT_S", "1e10");
  EXPECT_NE(error_of([] { load_configuration(nullptr); }).find("is above 1000000000 seconds"),
            std::string::npos);
}

// A user who chose the working directory must not be able to choose code.
TEST_F(load, working_directory_file_must_not_load_code) {
  for (const char* text :
       {"[plugins]\nevil = \"/tmp/evil.so\"\n", "[backend.nccl]\nlibrary = \"/tmp/evil.so\"\n",
        "[backend.oneccl]\nsite_packages = \"/tmp\"\n", "[backend.fused]\nblas_library = \"/tmp/evil.so\"\n"}) {
    write("isthmus.toml", text);
    const std::string refusal = error_of([] { load_configuration(nullptr); });
    EXPECT_TRUE(refusal.starts_with("isthmus.toml sets the ")) << refusal;
    EXPECT_NE(refusal.find("ISTHMUS_CONFIG=" + (m_folder / "isthmus.toml").string()), std::string::npos)
        << refusal;
    set("ISTHMUS_CONFIG", "isthmus.toml");  // an explicitly named file is trusted
    EXPECT_NO_THROW(load_configuration(nullptr));
    set("ISTHMUS_CONFIG", nullptr);
  }
}

TEST_F(load, files_writable_by_others_must_not_load_code) {
  write("c.toml", "[plugins]\nevil = \"/tmp/evil.so\"\n");
  EXPECT_NO_THROW(load_configuration("c.toml"));
  std::filesystem::permissions("c.toml", std::filesystem::perms(0666));
  const std::string refusal = error_of([] { load_configuration("c.toml"); });
  EXPECT_TRUE(
      refusal.starts_with("c.toml sets the plug-in evil, but " + m_folder.string() + "/c.toml has owner "))
      << refusal;
  EXPECT_NE(refusal.find("mode 0666"), std::string::npos) << refusal;
  write("rules.toml", "timeout_s = 7");  // files that load no code are read as usual
  std::filesystem::permissions("rules.toml", std::filesystem::perms(0666));
  EXPECT_EQ(load_configuration("rules.toml").timeout_s, 7);
}

TEST_F(load, untrusted_working_directory_file_is_ignored) {
  write("isthmus.toml", "timeout_s = 7\n");
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 7);
  std::filesystem::permissions("isthmus.toml", std::filesystem::perms(0666));
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 300);
  std::filesystem::permissions("isthmus.toml", std::filesystem::perms(0600));
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  constexpr uid_t other_user = 12345;
  ASSERT_EQ(chown("isthmus.toml", other_user, other_user), 0);
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 300);
  ASSERT_EQ(chown("isthmus.toml", 0, 0) + chown(".", other_user, other_user), 0);  // foreign folder
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 300);
  ASSERT_EQ(chown(".", 0, 0), 0);
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 7);
}

TEST_F(load, relative_user_folders_are_not_searched) {
  write("xdg/isthmus/isthmus.toml", "timeout_s = 2");
  set("XDG_CONFIG_HOME", "xdg");
  set("HOME", ".");
  EXPECT_EQ(load_configuration(nullptr).timeout_s, 300);
}

TEST_F(load, example_file_is_valid) {
  const std::string example = ISTHMUS_SOURCE_DIR "/examples/isthmus.toml";
  const configuration read = load_configuration(example.c_str());
  EXPECT_GT(read.rules.size(), load_configuration(nullptr).rules.size());
}

// Reads every TOML block and every ISTHMUS_RULE of the documentation of selection.
TEST_F(load, documentation_examples_are_valid) {
  std::ifstream page(ISTHMUS_SOURCE_DIR "/docs/reference/configuration.md");
  std::string block;
  bool inside = false;
  int blocks = 0;
  for (std::string line; std::getline(page, line);) {
    if (inside && line == "```") {
      inside = false;
      ++blocks;
      EXPECT_NO_THROW(load_configuration(write("block.toml", block).c_str())) << block;
    } else if (line == "```toml") {
      inside = true;
      block.clear();
    } else if (inside) {
      block += line + "\n";
    } else if (line.starts_with("| `ISTHMUS_RULE` | `")) {
      const auto first = line.find('`', line.find("| `", 2)) + 1;
      set("ISTHMUS_RULE", line.substr(first, line.find('`', first) - first).c_str());
      ++blocks;
      EXPECT_EQ(configured_rules(load_configuration(nullptr)).size(), 2u) << line;
      set("ISTHMUS_RULE", nullptr);
    }
  }
  EXPECT_EQ(blocks, 3);
}

// Damaged files are either read or rejected with a location; nothing else happens.
TEST_F(load, damaged_files_have_a_located_error) {
  std::ifstream stream(ISTHMUS_SOURCE_DIR "/examples/isthmus.toml");
  const std::string example((std::istreambuf_iterator<char>(stream)), {});
  std::mt19937 random(1);
  const auto draw = [&](std::size_t count) { return static_cast<std::size_t>(random()) % count; };
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = example;
    for (std::size_t damage = 1 + draw(3); damage > 0; --damage) {
      const std::size_t place = draw(text.size());
      switch (draw(3)) {
        case 0: text[place] = static_cast<char>(random()); break;
        case 1: text.erase(place, 1 + draw(9)); break;
        default: text.insert(place, text.substr(draw(text.size()), draw(20)));
      }
    }
    try {
      load_configuration(write("damaged.toml", text).c_str());
    } catch (const error& failure) {
      ++refused;
      EXPECT_EQ(failure.info().status, ISTHMUS_ERROR_CONFIG);
      EXPECT_TRUE(std::string(failure.what()).starts_with("damaged.toml:")) << failure.what();
    }
  }
  EXPECT_GT(refused, 300);
}

TEST_F(load, canonical_text_ignores_sources_but_not_content) {
  write("a.toml",
        "[backend.shm]\nx = 1\ny = \"two\\nlines\"\n[[rule]]\ncollective = [\"reduce\", \"send\"]\nuse = "
        "\"a\"\n");
  write("b.toml",
        "\n\n[[rule]]\nuse = \"a\"\ncollective = [\"send\", \"reduce\"]\n[backend.shm]\ny = "
        "\"two\\nlines\"\nx = 1\n");
  write("c.toml",
        "[backend.shm]\nx = 1\ny = \"two\\nlines\"\n[[rule]]\ncollective = [\"reduce\", \"send\"]\nuse = "
        "\"b\"\n");
  const std::string a = load_configuration("a.toml").canonical();
  EXPECT_EQ(a, load_configuration("b.toml").canonical());
  EXPECT_NE(a, load_configuration("c.toml").canonical());
  EXPECT_NE(a.find("\nrule collective=reduce,send use=a\n"), std::string::npos) << a;
  EXPECT_NE(a.find("\noption backend.shm.y=\"two\\nlines\"\n"), std::string::npos) << a;
  EXPECT_NE(a.find("\nsycl_backend ext_oneapi_hip=hip\n"), std::string::npos) << a;
  EXPECT_EQ(a.find("a.toml"), std::string::npos) << a;
}

TEST_F(load, canonical_text_keeps_the_order_of_rules) {
  set("ISTHMUS_RULE", "use=x; use=y");
  const std::string forward = load_configuration(nullptr).canonical();
  set("ISTHMUS_RULE", "use=y; use=x");
  EXPECT_NE(forward, load_configuration(nullptr).canonical());
}

}  // namespace
}  // namespace isthmus::selection
