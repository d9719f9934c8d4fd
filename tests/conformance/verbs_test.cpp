// Verbs: the suite that every transport passes. Runs in the lab, where there is a device.
#include "tests/conformance/verbs_fixture.hpp"

namespace rtrs::conformance {
namespace {

TEST_CASE_TEMPLATE_INVOKE(queue_pair_conformance, VerbsInlining, VerbsWithoutInline);

}  // namespace
}  // namespace rtrs::conformance
