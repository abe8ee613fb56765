"""The text that is profiled when none is given: plain prose, a dialogue, code, numbers and other languages."""

TEXT = """
The river had been rising since Tuesday, and by the weekend the lower fields were under water. Nobody in the
village was surprised: it happened every few years, and the old houses stood on the hill for a reason. Children
walked to school along the wall, counting the fence posts that still showed above the surface. The teacher, who
had grown up in the city, asked whether anyone was afraid. A girl in the second row shook her head. "It always
goes down again," she said, "and then the grass is greener than before."

Question: What is the difference between weather and climate?
Answer: Weather is what happens in the air above a place at a particular time: rain this morning, wind tonight.
Climate is the pattern of the weather over many years. A cold week says little about the climate, just as one
short person says little about the average height of a country.

def moving_average(values, width):
    if width < 1:
        raise ValueError("the width must be at least one")
    total, result = 0.0, []
    for index, value in enumerate(values):
        total += value
        if index >= width:
            total -= values[index - width]
        if index >= width - 1:
            result.append(total / width)
    return result

To bake a simple loaf you need 500 g of flour, 10 g of salt, 7 g of dry yeast and about 320 ml of lukewarm water. Mix
everything, knead for ten minutes, cover the bowl and let the dough rest for an hour. Shape it, wait another forty
minutes, then bake it at 230 degrees for half an hour. The crust should be dark and the bottom should sound hollow.

The first machines that could store a program filled whole rooms. They worked with valves that burned out every
few hours, so engineers kept boxes of spares beside the cabinets. Within ten years the transistor had replaced
the valve, and within thirty a single chip did what the room had done. What did not change was the idea: numbers
in a memory can be data or instructions, and the machine does not know which until it reads them.

User: I have to write a short message to my landlord because the heating does not work. Can you help?
Assistant: Of course. "Dear Ms Meyer, since yesterday evening the heating in our flat has not been working. The
radiators stay cold in all rooms. Could you please send somebody to look at it this week? We are at home every
day after five. Kind regards." Would you like it to sound more formal?

SELECT city, COUNT(*) AS orders, AVG(amount) FROM purchases WHERE year = 2019 GROUP BY city ORDER BY orders DESC;

Die meisten Zugvögel fliegen nachts. Sie richten sich nach den Sternen, nach dem Magnetfeld der Erde und nach dem
Verlauf von Flüssen und Küsten. Junge Vögel kennen die Richtung von Geburt an, den genauen Weg lernen sie erst.
Le marché ouvre à sept heures. On y trouve des fruits, du fromage, des fleurs et, le samedi, un homme qui répare les
montres. En la plaza hay una fuente donde los niños juegan cuando hace calor.

Theorem. There are infinitely many prime numbers. Proof. Suppose there were only finitely many, and multiply them all
together. The product plus one is divisible by none of them, since each leaves a remainder of one. So it has a prime
factor that was not on the list, which contradicts the assumption.

In the spring of that year the company had 14 employees, 3 vans and debts of 27,400 pounds. By autumn it had 9
employees, 1 van and no debts. "We became smaller in order to stay," the founder told a newspaper, "and I would
do it again."
""".strip()
