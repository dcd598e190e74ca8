#include "selection/layer.hpp"
#include "selection/support.hpp"

namespace isthmus::selection {
namespace {

class environment : public configured {
 protected:
  std::string error_with(const char* variable, const char* value) {
    set(variable, value);
    const std::string message = error_of([] { read_environment(); });
    set(variable, nullptr);
    return message;
  }
};

TEST_F(environment, blank_variables_are_ignored) {
  for (const char* name :
       {"ISTHMUS_THRESHOLD", "ISTHMUS_DEFAULT_BACKEND", "ISTHMUS_TIMEOUT_S", "ISTHMUS_RULE", "ISTHMUS_BACKEND"})
    set(name, " ");
  const config_layer read = read_environment();
  EXPECT_FALSE(read.threshold);
  EXPECT_FALSE(read.default_backend);
  EXPECT_FALSE(read.timeout_s);
  EXPECT_FALSE(read.forced_rule);
  EXPECT_TRUE(read.rules.empty());
}

TEST_F(environment, every_variable_is_read) {
  set("ISTHMUS_THRESHOLD", "64K");
  set("ISTHMUS_DEFAULT_BACKEND", "shm");
  set("ISTHMUS_TIMEOUT_S", "2.5");
  set("ISTHMUS_RULE",
      " collective=allreduce,reduce bytes=0..64K  use=shm:packet ;platform=cuda datatype=float16 "
      "memory=symmetric ranks=2..8 nodes=1 use=p2p;");
  const config_layer read = read_environment();
  EXPECT_EQ(read.threshold->value, 65536);
  EXPECT_EQ(read.default_backend->value, "shm");
  EXPECT_EQ(read.timeout_s, 2.5);
  EXPECT_EQ(
      texts(read.rules),
      (std::vector<std::string>{"collective=reduce,allreduce bytes=0..64K use=shm:packet",
                                "platform=cuda datatype=float16 memory=symmetric ranks=2..8 nodes=1 use=p2p"}));
  EXPECT_EQ(sources(read.rules), std::vector<std::string>(2, "environment ISTHMUS_RULE"));
}

TEST_F(environment, backend_options_are_parsed) {
  set("ISTHMUS_OPTION", " backend.shm.one = 64 ; backend.copy_engine.two=a=b;");
  EXPECT_EQ(read_environment().options, (std::vector<std::pair<std::string, std::string>>{
                                            {"backend.shm.one", "64"}, {"backend.copy_engine.two", "a=b"}}));
  for (const char* wrong : {"shm.one=64", "backend.shm=64", "backend.shm.one", "backend.sh m.one=1"})
    EXPECT_TRUE(error_with("ISTHMUS_OPTION", wrong).starts_with("environment ISTHMUS_OPTION: ")) << wrong;
}

TEST_F(environment, a_forced_backend_is_the_only_rule) {
  set("ISTHMUS_RULE", "use=shm");
  set("ISTHMUS_BACKEND", "mpi");
  const configuration forced = load_configuration(nullptr);
  EXPECT_EQ(texts(forced.rules), std::vector<std::string>{"use=mpi"});
  EXPECT_EQ(sources(forced.rules), std::vector<std::string>{"environment ISTHMUS_BACKEND"});
}

TEST_F(environment, errors_name_the_variable) {
  EXPECT_EQ(
      error_with("ISTHMUS_THRESHOLD", "many"),
      "environment ISTHMUS_THRESHOLD: size \"many\" is not a number of bytes; allowed: digits and one of the "
      "units K, M, G (1024, 1024^2, 1024^3) | ");
  EXPECT_EQ(error_with("ISTHMUS_DEFAULT_BACKEND", "shm:packet"),
            "environment ISTHMUS_DEFAULT_BACKEND: backend \"shm:packet\" is not a name; allowed: a lower-case "
            "letter, then lower-case letters, digits and _ | ");
  EXPECT_EQ(error_with("ISTHMUS_TIMEOUT_S", "-3"),
            "environment ISTHMUS_TIMEOUT_S: timeout_s \"-3\" is not a positive number of seconds | ");
  EXPECT_EQ(error_with("ISTHMUS_BACKEND", "Host"),
            "environment ISTHMUS_BACKEND: backend \"Host\" is not a name; allowed: a lower-case letter, then "
            "lower-case letters, digits and _ | ");
}

TEST_F(environment, rule_errors_name_the_rule) {
  EXPECT_EQ(error_with("ISTHMUS_RULE", "use=mpi; memory=heap use=shm"),
            "environment ISTHMUS_RULE: rule 2 \"memory=heap use=shm\": unknown memory \"heap\"; allowed: any, "
            "symmetric | ");
  EXPECT_EQ(
      error_with("ISTHMUS_RULE", "byte=0..4 use=shm"),
      "environment ISTHMUS_RULE: rule 1 \"byte=0..4 use=shm\": unknown key \"byte\"; allowed: collective, "
      "platform, datatype, op, memory, ranks, nodes, bytes, use | did you mean \"bytes\"?");
  // Two pairs of adjacent letters are swapped.
  const std::string swapped = error_with("ISTHMUS_RULE", "arnsk=2 use=shm");
  EXPECT_TRUE(swapped.ends_with("| did you mean \"ranks\"?")) << swapped;
  EXPECT_EQ(error_with("ISTHMUS_RULE", "shm"),
            "environment ISTHMUS_RULE: rule 1 \"shm\": \"shm\" is not KEY=VALUE | ");
  EXPECT_EQ(error_with("ISTHMUS_RULE", "use=shm use=mpi"),
            "environment ISTHMUS_RULE: rule 1 \"use=shm use=mpi\": use is given twice | ");
  EXPECT_EQ(
      error_with("ISTHMUS_RULE", "collective=send collective=recv use=mpi"),
      "environment ISTHMUS_RULE: rule 1 \"collective=send collective=recv use=mpi\": collective is given twice "
      "| separate its values with commas");
  EXPECT_EQ(error_with("ISTHMUS_RULE", "bytes=0..4"),
            "environment ISTHMUS_RULE: rule 1 \"bytes=0..4\": the rule has no use: it must name a "
            "backend | add use = \"BACKEND\" or use = \"BACKEND:ALGORITHM\"");
}

}  // namespace
}  // namespace isthmus::selection
