// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/questions.hpp"

#include <array>
#include <cerrno>

#include "bridge/client/control.hpp"

namespace rnbd {
namespace {

template <class Question>
DeviceAnswer ask(rtrs::Client& client, const DeviceHandle& device, const Question& question,
                 const rtrs::Interrupt& interrupt) {
  std::array<std::byte, sizeof(wire::DeviceInfoResponse)> answer{};
  ControlOperation operation{device, question, answer};
  if (const int error = client.run_control(operation, interrupt)) return {error, {}};
  const auto told =
      wire::decode<wire::DeviceInfoResponse>(answer, wire::MessageType::device_info_response);
  if (!told) return {};
  return {0, *told};
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
  return ask(client, device, question, interrupt);
}

DeviceAnswer ask_claim(rtrs::Client& client, const DeviceHandle& device, const Witness& seen,
                       const rtrs::Interrupt& interrupt) {
  wire::Claim question;
  question.header = wire::header_of(wire::MessageType::claim);
  question.sight = seen.sight;
  question.writer_serial = seen.writer_serial;
  DeviceAnswer answer = ask(client, device, question, interrupt);
  if (answer.error == ENOTCONN) answer.error = EIO;  // it was lost
  if (answer.error == 0 && !answer.info) answer.error = EPROTO;
  return answer;
}

}  // namespace rnbd
