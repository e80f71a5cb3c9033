"""Trains a policy with its value function by trial. Read by propagation.py as text, never run."""

import gymnasium
import numpy as np
import torch
from torch import nn

import flor

GAMMA, LAMBDA = 0.99, 0.95
CLIP, ENTROPY, VALUE = 0.2, 0.01, 0.5


def mlp(inputs, outputs, width=64):
    layers = [nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


class Agent:
    def __init__(self, env, lr=3e-4):
        states, actions = env.observation_space.shape[0], env.action_space.n
        self.env = env
        self.policy = mlp(states, actions)
        self.value = mlp(states, 1)
        self.weights = [*self.policy.parameters(), *self.value.parameters()]
        self.optimizer = torch.optim.Adam(self.weights, lr=lr)
        self.steps = 0
        self.returns = []

    def act(self, state):
        with torch.no_grad():
            logits = self.policy(torch.as_tensor(state))
            value = self.value(torch.as_tensor(state)).item()
        chosen = torch.distributions.Categorical(logits=logits)
        action = chosen.sample()
        return action.item(), chosen.log_prob(action).item(), value

    def collect(self, length):
        state, _ = self.env.reset()
        memory, total = [], 0.0
        for _ in range(length):
            action, log_prob, value = self.act(state)
            after, reward, done, cut, _ = self.env.step(action)
            memory.append((state, action, log_prob, value, reward, done))
            total += reward
            self.steps += 1
            if done or cut:
                self.returns.append(total)
                flor.log("return", total)
                after, _ = self.env.reset()
                total = 0.0
            state = after
        return memory, self.act(state)[2]

    def advantages(self, memory, last):
        found = np.zeros(len(memory), dtype=np.float32)
        running, following = 0.0, last
        for index in reversed(range(len(memory))):
            _, _, _, value, reward, done = memory[index]
            delta = reward + GAMMA * following * (1 - done) - value
            running = delta + GAMMA * LAMBDA * (1 - done) * running
            found[index] = running
            following = value
        flor.log("advantage_std", found.std().item())
        return found

    def update(self, memory, advantages, epochs=4, size=64):
        states = torch.as_tensor(np.array([m[0] for m in memory]))
        actions = torch.as_tensor([m[1] for m in memory])
        before = torch.as_tensor([m[2] for m in memory])
        values = torch.as_tensor([m[3] for m in memory])
        gains = torch.as_tensor(advantages)
        targets = gains + values
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        for epoch in flor.loop("epoch", range(epochs)):
            order = torch.randperm(len(memory))
            divergence = 0.0
            for part in order.split(size):
                chosen = torch.distributions.Categorical(logits=self.policy(states[part]))
                change = chosen.log_prob(actions[part]) - before[part]
                ratio = change.exp()
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                policy_loss = -torch.min(ratio * gains[part], clipped * gains[part]).mean()
                guess = self.value(states[part]).squeeze(-1)
                value_loss = (guess - targets[part]).pow(2).mean()
                entropy = chosen.entropy().mean()
                flor.log("clip_share", (ratio != clipped).float().mean().item())
                loss = policy_loss + VALUE * value_loss - ENTROPY * entropy
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.weights, 0.5)
                self.optimizer.step()
                divergence += -change.mean().item() * len(part)
            flor.log("divergence", divergence / len(memory))
            if divergence / len(memory) > 0.02:
                print("left early in epoch", epoch)
                break


def train(name="CartPole-v1", rounds=200, length=2048):
    torch.manual_seed(0)
    env = gymnasium.make(name)
    agent = Agent(env)
    for number in flor.loop("round", range(rounds)):
        memory, last = agent.collect(length)
        advantages = agent.advantages(memory, last)
        agent.update(memory, advantages)
        recent = agent.returns[-20:]
        mean = sum(recent) / max(len(recent), 1)
        flor.log("mean_return", mean)
        print(f"round {number}: {mean:.1f} after {agent.steps} steps")
    return agent


if __name__ == "__main__":
    train()
