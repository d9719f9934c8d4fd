// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/questions.hpp"

#include <array>
#include <cerrno>

#include "bridge/client/control.hpp"

namespace rnbd {
namespace {

DeviceAnswer answer_of(rtrs::ConstBytes bytes) {
  const auto told =
      wire::decode<wire::DeviceInfoResponse>(bytes, wire::MessageType::device_info_response);
  if (!told) return {};
  return {0, *told};
}

wire::Claim claim_of(const Witness& seen) {
  wire::Claim question;
  question.header = wire::header_of(wire::MessageType::claim);
  question.sight = seen.sight;
  question.writer_serial = seen.writer_serial;
  return question;
}

}  // namespace

int ask_session_info(rtrs::Client& client, const rtrs::Interrupt& interrupt) {
  wire::SessionInfo question;
  question.header = wire::header_of(wire::MessageType::session_info);
  std::array<std::byte, sizeof(wire::SessionInfo)> answer{};
  ControlOperation operation{question, answer};
  if (int error = client.run_control(operation, interrupt); error != 0) return error;
  auto info = wire::decode<wire::SessionInfo>(answer, wire::MessageType::session_info_response);
  return info && info->version != 0 ? 0 : EPROTO;
}

DeviceAnswer ask_device_info(rtrs::Client& client, const DeviceHandle& device,
                             const rtrs::Interrupt& interrupt) {
  wire::DeviceInfo question;
  question.header = wire::header_of(wire::MessageType::device_info);
  std::array<std::byte, sizeof(wire::DeviceInfoResponse)> answer{};
  ControlOperation operation{device, question, answer};
  if (const int error = client.run_control(operation, interrupt)) return {error, {}};
  return answer_of(answer);
}

ClaimQuestion::ClaimQuestion(const DeviceHandle& device, const Witness& seen)
    : operation_{device, claim_of(seen), answer_} {}

DeviceAnswer ClaimQuestion::answer(int error) const {
  if (error != 0) return {error == ENOTCONN ? EIO : error, {}};  // it was lost
  DeviceAnswer answer = answer_of(answer_);
  if (!answer.info) answer.error = EPROTO;
  return answer;
}

DeviceAnswer ask_claim(rtrs::Client& client, const DeviceHandle& device, const Witness& seen,
                       const rtrs::Interrupt& interrupt) {
  ClaimQuestion question{device, seen};
  return question.answer(client.run_control(question.operation(), interrupt));
}

}  // namespace rnbd
